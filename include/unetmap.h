/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * unetmap.h: what libunetmap offers beyond netmap's interface. A program that uses it depends on libunetmap (linked, or
 * preloaded by `unetmap run`).
 */
#ifndef UNETMAP_H
#define UNETMAP_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A flag of the register request (nr_flags): the library records when each packet is received and sent. Without it
 * times cost nothing.
 */
#define NR_SLOT_TIMES 0x80000000U

/*
 * Another one, by which an interface is refused unless the host's stack is disconnected from it: it neither receives
 * frames of the interface nor sends any, but by host rings. In a port's name: /d.
 */
#define NR_DISCONNECTED 0x08000000U

/* What took a time. */
#define UNETMAP_TIME_SYNC 1 /* the sync of this port that delivered or sent the packet */
#define UNETMAP_TIME_MONITORED_SYNC 2 /* at a monitor: the sync of the monitored port */

/*
 * Returns when the packet in a slot was received (tx 0) or last sent (tx 1), in nanoseconds since 1970, or 0 if that is
 * not known: fd was not registered with NR_SLOT_TIMES by this process, has no such ring or slot, or another process
 * moved the packet. ring is the ring's number (ringid). What took the time is stored in source, unless it is NULL.
 */
uint64_t unetmap_slot_time(int fd, int tx, unsigned int ring, unsigned int slot, int *source);

/*
 * Has all ports that are registered from now on wait for the next daemon when theirs has ended, as UNETMAP_RECONNECT=1
 * in the environment does: the descriptor, the memory and the pointers into it stay valid. Until then rings have no
 * slots, and a wait goes on. Not ports with extra buffers or control blocks, nor monitors.
 */
void unetmap_reconnect(void);

/*
 * Returns how often the port of fd went on with another daemon. lost, unless it is NULL, is set to the slots that were
 * lost with former ones: filled and not sent, or received and not read.
 */
int unetmap_reconnects(int fd, uint64_t *lost);

#ifdef __cplusplus
}
#endif

#endif /* UNETMAP_H */
