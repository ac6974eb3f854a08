/* SPDX-License-Identifier: BSD-2-Clause */
/* Faults of a driver with zero copy, one in each thousand frames: `fault=1` writes a received frame once more, behind
 * the end of its buffer; `fault=2` sends the buffer of the frame before in place of the next one.
 */
#include <linux/moduleparam.h>
#include <net/xdp_sock_drv.h>

#define FAULT_EVERY 1000

static int fault;
module_param(fault, int, 0444);

static atomic_t fault_frames;

static bool fault_is_due(int kind)
{
	return fault == kind && atomic_inc_return(&fault_frames) % FAULT_EVERY == 0;
}

/* A frame was received. */
static void fault_received(struct xsk_buff_pool *pool, struct xdp_buff *xdp, unsigned int size)
{
	if (fault_is_due(1))
		memcpy(xdp->data + xsk_pool_get_rx_frame_size(pool), xdp->data, size);
}

/* A frame is to be sent. */
static dma_addr_t fault_sent(struct xsk_buff_pool *pool, dma_addr_t dma, u32 *len)
{
	static struct { struct xsk_buff_pool *pool; dma_addr_t dma; u32 len; } before;
	bool is_due = fault_is_due(2) && before.pool == pool;

	if (is_due) {
		dma = before.dma;
		*len = before.len;
	}
	before.pool = pool;
	before.dma = dma;
	before.len = *len;
	return dma;
}
