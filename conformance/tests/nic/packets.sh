# SPDX-License-Identifier: BSD-2-Clause
# Run by packets.rs as an ordinary user's root in new namespaces. $0: the folder of the programs; $1: frames each way.
set -eux
cd "$0"
for at in all default; do echo 1 >"/proc/sys/net/ipv6/conf/$at/disable_ipv6"; done
ip link add va type veth peer name vb
ip link set va up
ip link set vb up
until ip -o link show va | grep -q LOWER_UP; do sleep .1; done
./without_kernel_feature bpf ./unetmapd --foreground --idle-exit 0 &
until [ -S "$UNETMAP_SOCKET" ]; do kill -0 $!; sleep .1; done
daemon=$!
received() { ip -s -j link show "$1" | sed 's/.*"rx":{"bytes":[0-9]*,"packets":\([0-9]*\).*/\1/'; }
# To the cable's other end.
before=$(received vb)
./pkt-gen -i netmap:va -f tx -w 0 -n "$1"
[ "$(received vb)" = $((before + $1)) ]
# And from it, where both ends are ports. The sockets have room for all frames.
./pkt-gen -i netmap:va -f rx -w 0 -n "$1" &
receiver=$!
until ./unetmap ls | grep -qx 'va: packet socket'; do kill -0 "$receiver"; sleep .1; done
./pkt-gen -i netmap:vb -f tx -w 0 -n "$1"
wait "$receiver"
# By a switch, to which an interface and a persistent port are attached: each port gets all frames.
few=500
./vale-ctl -a vale0:va
./vale-ctl -n vc
./vale-ctl -a vale0:vc
ip link set vc up
until ip -o link show vc | grep -q LOWER_UP; do sleep .1; done
before=$(received vc)
./pkt-gen -i vale0:1 -f rx -w 0 -n $few &
receiver=$!
until ./unetmap ls | grep -q '^vale0:1 .* rx 0 '; do kill -0 "$receiver"; sleep .1; done
./pkt-gen -i netmap:vb -f tx -w 0 -n $few
wait "$receiver"
until [ "$(received vc)" -ge $((before + few)) ]; do kill -0 "$daemon"; sleep .1; done
[ "$(received vc)" = $((before + few)) ]
kill "$daemon"
wait "$daemon" || true
