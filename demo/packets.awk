# Prints the packets of a pcap file in hexadecimal, one per line, without timestamps.
# Usage: od -An -v -tx1 FILE | awk -f packets.awk

function number(at,    i, text, value) {
    text = ""
    for (i = 0; i < 4; i++) text = little ? byte[at + i] text : text byte[at + i]
    value = 0
    for (i = 1; i <= 8; i++) value = value * 16 + index("0123456789abcdef", substr(text, i, 1)) - 1
    return value
}

{ for (i = 1; i <= NF; i++) byte[n++] = $i }

END {
    little = byte[0] == "d4" || byte[0] == "4d"
    if (number(0) != 2712847316 && number(0) != 2712812621) { print "not a pcap file" > "/dev/stderr"; exit 1 }
    at = 24
    while (at + 16 <= n) {
        len = number(at + 8)
        at += 16
        line = ""
        for (i = 0; i < len; i++) line = line byte[at + i]
        print line
        at += len
    }
    if (at != n) { print "the last packet is truncated" > "/dev/stderr"; exit 1 }
}
