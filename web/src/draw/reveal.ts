/** Scrolls a box, and nothing round it, until one of the things in it is seen. */

/** `left` and `top`: pixels of what sticks to the box's beginning; `ahead`: those to be seen beyond a thing that was out of sight on the right. */
export function reveal(box: Element | null, thing: Element | null, { left = 0, top = 0, ahead = 8 } = {}): void {
  if (!box || !thing) return;
  const [outer, inner] = [box.getBoundingClientRect(), thing.getBoundingClientRect()];
  const [right, foot] = [outer.left + box.clientWidth, outer.top + box.clientHeight];
  if (inner.left < outer.left + left) box.scrollLeft += inner.left - outer.left - left;
  else if (inner.right > right) box.scrollLeft += Math.min(inner.right - right + ahead, inner.left - outer.left - left);
  if (inner.top < outer.top + top) box.scrollTop += inner.top - outer.top - top;
  else if (inner.bottom > foot) box.scrollTop += inner.bottom - foot + 8;
}
