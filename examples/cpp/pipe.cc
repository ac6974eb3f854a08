/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Sends packets through a port, or receives them, in C++17.
 *
 *	pipe send netmap:demo{1 COUNT
 *	pipe receive netmap:demo}1 COUNT
 */
#include <array>
#include <exception>
#include <iostream>
#include <string>

#include <unetmap.hpp>

static void
send_packets(const unetmap::port &port, unsigned long count)
{
	std::array<unsigned char, 60> packet{};

	for (unsigned long sent = 0; sent < count;)
		if (port.send(packet.data(), packet.size()))
			sent++;
		else
			port.wait(POLLOUT, -1);
	/* The port is closed once the receiver has all. */
	do {
		port.sync_tx();
		poll(nullptr, 0, 1);
	} while (nm_tx_pending(port.tx().get()));
	std::cout << "sent " << count << std::endl;
}

static void
receive_packets(const unetmap::port &port, unsigned long count)
{
	unsigned long packets = 0, bytes = 0;

	while (packets < count && port.wait(POLLIN, -1))
		port.receive([&](unetmap::slot packet) {
			packets++;
			bytes += packet.size();
		});
	/* The sender sees that its packets were received. */
	port.sync_rx();
	std::cout << "received " << packets << " packets, " << bytes << " bytes" << std::endl;
}

int
main(int argc, char **argv)
try {
	if (argc != 4) {
		std::cerr << "usage: pipe send|receive PORT COUNT" << std::endl;
		return 2;
	}
	const unetmap::port port{argv[2]};

	(argv[1] == std::string("send") ? send_packets : receive_packets)(port, std::stoul(argv[3]));
	return 0;
} catch (const std::exception &error) {
	std::cerr << "pipe: " << error.what() << std::endl;
	return 1;
}
