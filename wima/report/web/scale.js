"use strict";
// From data to pixels and back, and the numbers on axes.

/** A function from data to pixels that maps a to `from` and b to `to`. */
function scale(log, a, b, from, to) {
  const f = log ? (v) => Math.log(Math.max(v, a)) : (v) => v;
  const [fa, fb] = [f(a), f(b)];
  return (v) => from + ((f(v) - fa) / (fb - fa || 1)) * (to - from);
}

/** About `count` round numbers between two ends; on a log scale 1, 2, 5, 10, ... or 1, 10, ... */
function ticks(from, to, log, count) {
  const found = [];
  if (log && to / from > 4) {
    const decades = Math.log10(to / from);
    const parts = decades > Math.min(5, count) ? [1] : [1, 2, 5];
    for (let power = Math.floor(Math.log10(from)); power <= Math.log10(to); power++) {
      for (const part of parts) found.push(part * 10 ** power);
    }
    return found.filter((tick) => tick >= from && tick <= to);
  }
  const rough = (to - from) / Math.max(count, 2);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((part) => part * power >= rough);
  for (let i = Math.ceil(from / step); i * step <= to && found.length < 100; i++) found.push(i * step);
  return found;
}

function short(value) {
  return String(Number(value.toPrecision(6))).replace("-", "\u2212");
}

/** The index of the round nearest to a pixel; rounds are in ascending order. */
function nearest(x, pixel, px) {
  let [low, high] = [0, x.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (px(x[middle]) < pixel) low = middle; else high = middle;
  }
  return Math.abs(px(x[low]) - pixel) <= Math.abs(px(x[high]) - pixel) ? low : high;
}
