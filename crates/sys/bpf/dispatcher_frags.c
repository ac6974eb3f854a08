// SPDX-License-Identifier: BSD-2-Clause
//
// The dispatcher for frames of several buffers, which Linux supports since 5.18 and which all members must accept.

#define PROGRAM "xdp.frags"
#include "dispatcher.c"
