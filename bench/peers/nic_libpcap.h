/*
 * The libpcap peers. libpcap is loaded at run time, so that building needs neither its headers nor the library.
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
struct pcap_pkthdr {
	struct timeval ts;
	uint32_t caplen, len;
};
typedef void pcap_handler(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes);

static struct {
	void *(*create)(const char *source, char *error);
	int (*set_int[4])(void *handle, int value);
	int (*activate)(void *handle);
	int (*setnonblock)(void *handle, int on, char *error);
	int (*setdirection)(void *handle, int direction);
	int (*get_selectable_fd)(void *handle);
	int (*dispatch)(void *handle, int packets, pcap_handler *call, unsigned char *user);
	int (*inject)(void *handle, const void *bytes, size_t size);
	char *(*geterr)(void *handle);
} pcap;

static void *symbol(void *library, const char *name)
{
	void *found = dlsym(library, name);

	if (!found)
		fail(UNSUPPORTED, "the libpcap of this machine lacks %s", name);
	return found;
}

static void pcap_load(void)
{
	void *library = dlopen("libpcap.so.1", RTLD_NOW);

	/* The soname on Debian. */
	if (!library)
		library = dlopen("libpcap.so.0.8", RTLD_NOW);
	if (!library)
		fail(UNSUPPORTED, "libpcap is not installed");
	pcap.create = symbol(library, "pcap_create");
	pcap.set_int[0] = symbol(library, "pcap_set_snaplen");
	pcap.set_int[1] = symbol(library, "pcap_set_promisc");
	pcap.set_int[2] = symbol(library, "pcap_set_timeout");
	pcap.set_int[3] = symbol(library, "pcap_set_buffer_size");
	pcap.activate = symbol(library, "pcap_activate");
	pcap.setnonblock = symbol(library, "pcap_setnonblock");
	pcap.setdirection = symbol(library, "pcap_setdirection");
	pcap.get_selectable_fd = symbol(library, "pcap_get_selectable_fd");
	pcap.dispatch = symbol(library, "pcap_dispatch");
	pcap.inject = symbol(library, "pcap_inject");
	pcap.geterr = symbol(library, "pcap_geterr");
}

static void *pcap_open(const char *interface)
{
	/* Snapshot length, promiscuous mode, buffer timeout in milliseconds, buffer bytes. */
	static const int values[] = { FRAME, 1, 1, 8 << 20 };
	/* PCAP_ERRBUF_SIZE */
	char error[256] = "";
	void *handle = pcap.create(interface, error);

	if (!handle)
		fail(1, "pcap_create: %s", error);
	for (int i = 0; i < 4; i++)
		pcap.set_int[i](handle, values[i]);
	if (pcap.activate(handle) < 0)
		fail(1, "pcap_activate: %s", pcap.geterr(handle));
	if (pcap.setnonblock(handle, 1, error) < 0)
		fail(1, "pcap_setnonblock: %s", error);
	/* PCAP_D_IN */
	if (pcap.setdirection(handle, 1) < 0)
		fail(1, "pcap_setdirection: %s", pcap.geterr(handle));
	return handle;
}

static void inject(void *handle, const void *bytes, size_t size)
{
	if (pcap.inject(handle, bytes, size) < 0 && errno != ENOBUFS && errno != EAGAIN)
		fail(1, "pcap_inject: %s", pcap.geterr(handle));
}

static void tx_libpcap(const char *interface)
{
	pcap_load();
	void *handle = pcap_open(interface);
	for (;;)
		inject(handle, packet, len);
}

static void count_one(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes)
{
	(void)user, (void)header, (void)bytes;
	count(1);
}

static int dispatch(void *handle, pcap_handler *call, void *user)
{
	int n = pcap.dispatch(handle, batch, call, user);

	if (n < 0)
		fail(1, "pcap_dispatch: %s", pcap.geterr(handle));
	return n;
}

static void rx_libpcap(const char *interface)
{
	pcap_load();
	void *handle = pcap_open(interface);
	struct pollfd fd = { pcap.get_selectable_fd(handle), POLLIN, 0 };
	for (;;)
		sleep_if_idle(&fd, 1, dispatch(handle, count_one, NULL) > 0);
}

static void inject_into(unsigned char *handle, const struct pcap_pkthdr *header, const unsigned char *bytes)
{
	inject(handle, bytes, header->caplen);
}

static void fwd_libpcap(const char *one, const char *other)
{
	pcap_load();
	void *x = pcap_open(one), *y = pcap_open(other);
	struct pollfd fds[] = { { pcap.get_selectable_fd(x), POLLIN, 0 }, { pcap.get_selectable_fd(y), POLLIN, 0 } };
	for (;;) {
		int there = dispatch(x, inject_into, y), back = dispatch(y, inject_into, x);
		sleep_if_idle(fds, 2, there + back > 0);
	}
}
