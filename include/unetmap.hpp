/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * unetmap.hpp - ports for C++17. A port is closed when its object is destroyed;
 * errors are std::system_error, with netmap's errno.
 *
 *	unetmap::port port{"netmap:eth0"};
 *
 *	while (port.wait(POLLIN, -1))
 *		port.receive([](unetmap::slot packet) { use(packet.data(), packet.size()); });
 *
 * The objects are thin: a ring or a slot is a pointer into the port's memory, valid
 * while the port is. Link -lunetmap or -lnetmap.
 */
#ifndef UNETMAP_HPP
#define UNETMAP_HPP

#if __cplusplus < 201703L
#error "unetmap.hpp needs C++17 (-std=c++17)"
#endif

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <system_error>
#include <utility>

#include <poll.h>
#include <sys/ioctl.h>

#include <libnetmap.h>

namespace unetmap {

/* Throws the error of a call that has failed. */
[[noreturn]] inline void
fail(const std::string &what)
{
	throw std::system_error(errno, std::generic_category(), what);
}

/* A slot and its buffer. */
class slot {
public:
	slot(netmap_ring *ring, std::uint32_t index) noexcept : ring_(ring), slot_(&ring->slot[index]) {}

	/* The packet. */
	unsigned char *data() const noexcept
	{
		return reinterpret_cast<unsigned char *>(NETMAP_BUF_OFFSET(ring_, slot_));
	}
	/* Bytes of the packet, of its part in this slot if more() is true. */
	std::size_t size() const noexcept { return slot_->len; }
	/* Bytes that the buffer has for a packet. */
	std::size_t capacity() const noexcept { return ring_->nr_buf_size - NETMAP_ROFFSET(ring_, slot_); }
	/* Whether the packet goes on in the next slot. */
	bool more() const noexcept { return (slot_->flags & NS_MOREFRAG) != 0; }

	/* Copies a packet into the buffer. Returns false if it is longer, and copies nothing. */
	bool assign(const void *packet, std::size_t bytes) const noexcept
	{
		if (bytes > capacity())
			return false;
		std::memcpy(data(), packet, bytes);
		resize(bytes);
		return true;
	}
	/* Sets the bytes of a packet that is one slot. */
	void resize(std::size_t bytes) const noexcept
	{
		slot_->len = static_cast<std::uint16_t>(bytes);
		slot_->flags = static_cast<std::uint16_t>(slot_->flags & ~NS_MOREFRAG);
	}
	/* Exchanges the buffers of two slots of one region: the packet moves without a copy. */
	void swap(const slot &other) const noexcept
	{
		std::swap(slot_->buf_idx, other.slot_->buf_idx);
		std::swap(slot_->len, other.slot_->len);
		slot_->flags = static_cast<std::uint16_t>(slot_->flags | NS_BUF_CHANGED);
		other.slot_->flags = static_cast<std::uint16_t>(other.slot_->flags | NS_BUF_CHANGED);
	}
	netmap_slot *get() const noexcept { return slot_; }

private:
	netmap_ring *ring_;
	netmap_slot *slot_;
};

/* The slots of a ring that the program has: received packets, or room for packets. */
class ring {
public:
	class iterator {
	public:
		using iterator_category = std::input_iterator_tag;
		using value_type = slot;
		using difference_type = std::ptrdiff_t;
		using pointer = void;
		using reference = slot;

		iterator(netmap_ring *ring, std::uint32_t at) noexcept : ring_(ring), at_(at) {}
		slot operator*() const noexcept { return slot(ring_, at_); }
		iterator &operator++() noexcept
		{
			at_ = nm_ring_next(ring_, at_);
			return *this;
		}
		iterator operator++(int) noexcept
		{
			iterator before = *this;
			++*this;
			return before;
		}
		bool operator==(const iterator &other) const noexcept { return at_ == other.at_; }
		bool operator!=(const iterator &other) const noexcept { return at_ != other.at_; }

	private:
		netmap_ring *ring_;
		std::uint32_t at_;
	};

	explicit ring(netmap_ring *of) noexcept : ring_(of) {}
	iterator begin() const noexcept { return iterator(ring_, ring_->head); }
	iterator end() const noexcept { return iterator(ring_, __atomic_load_n(&ring_->tail, __ATOMIC_ACQUIRE)); }
	std::uint32_t size() const noexcept { return nm_ring_space(ring_); }
	bool empty() const noexcept { return nm_ring_empty(ring_) != 0; }
	slot front() const noexcept { return *begin(); }
	/* Passes the first n slots to netmap: they are sent, or free for more packets; n is at most size(). */
	void advance(std::uint32_t n) const noexcept
	{
		std::uint32_t to = ring_->head + n;

		nm_move_head_(ring_, to < ring_->num_slots ? to : to - ring_->num_slots);
	}
	netmap_ring *get() const noexcept { return ring_; }

private:
	netmap_ring *ring_;
};

/* An open port. It can be moved, and not copied. */
class port {
public:
	/* Opens a port by its name, such as netmap:eth0 or vale0:1. */
	explicit port(const std::string &name) : port_(nmport_open(name.c_str()))
	{
		if (port_ == nullptr)
			fail(name);
	}
	port(port &&other) noexcept : port_(std::exchange(other.port_, nullptr)) {}
	port &operator=(port &&other) noexcept
	{
		std::swap(port_, other.port_);
		return *this;
	}
	port(const port &) = delete;
	port &operator=(const port &) = delete;
	~port()
	{
		if (port_ != nullptr)
			nmport_close(port_);
	}

	/* For poll, select and epoll. */
	int fd() const noexcept { return port_->fd; }
	nmport_d *get() const noexcept { return port_; }

	/* Rings that are bound. */
	unsigned tx_rings() const noexcept { return count(port_->first_tx_ring, port_->last_tx_ring); }
	unsigned rx_rings() const noexcept { return count(port_->first_rx_ring, port_->last_rx_ring); }
	/* A bound ring, from 0. */
	ring tx(unsigned i = 0) const noexcept { return ring(NETMAP_TXRING(port_->nifp, port_->first_tx_ring + i)); }
	ring rx(unsigned i = 0) const noexcept { return ring(NETMAP_RXRING(port_->nifp, port_->first_rx_ring + i)); }

	/* Sends what was passed to netmap, and takes back slots; takes what has arrived. */
	void sync_tx() const { call(NIOCTXSYNC, "NIOCTXSYNC"); }
	void sync_rx() const { call(NIOCRXSYNC, "NIOCRXSYNC"); }

	/*
	 * Syncs, and waits until there is a packet (POLLIN) or room for one (POLLOUT), at
	 * most for that many milliseconds (-1: for ever). Returns false after that time.
	 */
	bool wait(short events, int milliseconds) const
	{
		pollfd fd = { port_->fd, events, 0 };
		int ready;

		do
			ready = poll(&fd, 1, milliseconds);
		while (ready < 0 && errno == EINTR);
		if (ready < 0)
			fail("poll");
		if (fd.revents & POLLERR) {
			errno = EIO;
			fail("the port");
		}
		return ready > 0;
	}

	/* Copies a packet into a free slot of the rings. Returns false if there is none; sync_tx or wait sends it. */
	bool send(const void *packet, std::size_t bytes) const
	{
		for (unsigned i = 0; i < tx_rings(); i++) {
			ring to = tx(i);

			if (to.empty())
				continue;
			if (!to.front().assign(packet, bytes)) {
				errno = EMSGSIZE;
				fail("a packet is longer than a buffer");
			}
			to.advance(1);
			return true;
		}
		return false;
	}

	/* Calls each with every slot that has arrived, in the order of the rings. Returns how many there were. */
	template<typename Each> std::size_t receive(Each &&each) const
	{
		std::size_t slots = 0;

		for (unsigned i = 0; i < rx_rings(); i++) {
			ring from = rx(i);

			for (std::uint32_t n = from.size(); n > 0; n--, slots++) {
				each(from.front());
				from.advance(1);
			}
		}
		return slots;
	}

private:
	static unsigned count(unsigned first, unsigned last) noexcept { return last < first ? 0 : last - first + 1; }
	void call(unsigned long request, const char *what) const
	{
		if (ioctl(port_->fd, request, nullptr) != 0)
			fail(what);
	}

	nmport_d *port_;
};

} /* namespace unetmap */

#endif /* UNETMAP_HPP */
