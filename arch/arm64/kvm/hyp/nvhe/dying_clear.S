/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Clear a page and clean it to the point of coherency, line by line: one loop in
 * place of clear_page() and a pass over the caches after it.
 */

#include <linux/linkage.h>

#include <asm/alternative.h>
#include <asm/assembler.h>
#include <asm/page.h>

#define LINES_PER_ROUND	16

/*
 * bool dying_clear_page(void *page)
 *
 * Line by line the two are in order: maintenance of an address comes after stores to
 * it that are earlier in the program, and DC ZVA is such a store. Does not wait: the
 * caller issues the DSB, one for many pages.
 *
 * Return: false, and nothing was done, where DC ZVA is prohibited, where it clears
 * other than a cache line, or where a line has to be maintained twice.
 */
SYM_FUNC_START(dying_clear_page)
alternative_if ARM64_WORKAROUND_4311569
	b	.Lno
alternative_else_nop_endif
	dcache_line_size x1, x2
	mrs	x2, dczid_el0
	tbnz	x2, #4, .Lno
	mov	x3, #4
	and	w2, w2, #0xf
	lsl	x2, x3, x2
	cmp	x1, x2
	b.ne	.Lno
	cmp	x1, #(PAGE_SIZE / LINES_PER_ROUND)
	b.hi	.Lno

1:	.rept	LINES_PER_ROUND
	dc	zva, x0
	dc	civac, x0
	add	x0, x0, x1
	.endr
	tst	x0, #(PAGE_SIZE - 1)
	b.ne	1b
	mov	w0, #1
	ret

.Lno:	mov	w0, wzr
	ret
SYM_FUNC_END(dying_clear_page)
