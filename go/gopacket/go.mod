module unetmap/gopacket

go 1.24

require (
	github.com/google/gopacket v1.1.19
	unetmap v0.0.0
)

replace unetmap => ../
