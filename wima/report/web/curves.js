"use strict";
// How a curve is drawn: a line, points where few rounds were evaluated, a band over seeds.

const MARKED = 80; // up to this many evaluations are shown as points, more as a line

/** Curves that all rows share, such as the plain model beside several averages of a run, are one series. */
function onceOnly(lines) {
  const kept = [];
  for (const heading of new Set(lines.map((line) => line.heading))) {
    const own = lines.filter((line) => line.heading === heading);
    const rows = new Set(own.map((line) => line.row)).size;
    const curves = new Set(own.map((line) => `${line.seed} ${line.source}`)).size;
    const common = rows > 1 && curves * rows === own.length;
    kept.push(...(common ? own.filter((line) => line.row === own[0].row).map((line) => ({ ...line, common })) : own));
  }
  return kept;
}

/** The mean over seeds, smoothed, with the minimum and maximum. */
function spread(band, window) {
  const ends = ["low", "high"].map((name) => [name, smoothed({ ...band, v: band[name], y: null }, window).y]);
  return { ...smoothed(band, window), ...Object.fromEntries(ends), sparse: band.sparse };
}

/** A band from the minimum to the maximum over seeds. */
function fillBand(context, { x, low, high }, { px, py }, fill) {
  const known = x.map((_, i) => i).filter((i) => !Number.isNaN(low[i]));
  context.fillStyle = fill;
  context.beginPath();
  known.forEach((i) => context.lineTo(px(x[i]), py(high[i])));
  known.reverse().forEach((i) => context.lineTo(px(x[i]), py(low[i])));
  context.fill();
}

/** A line; up to round `sparse`, it is thin, with points at the evaluations. */
function drawCurve(context, { x, y, sparse = 0 }, at, dash, chosen) {
  const width = (dash.length ? 2 : 1.1) + (chosen ? 1 : 0);
  const last = x.findLastIndex((round) => round <= sparse);
  context.lineJoin = "round";
  context.setLineDash(dash);
  context.lineWidth = width;
  stroke(context, x, y, at, Math.max(last, 0), x.length);
  context.lineWidth = width / 2;
  stroke(context, x, y, at, 0, last + 1);
  if (last >= MARKED) return;
  context.fillStyle = context.strokeStyle;
  for (let i = 0; i <= last; i++) {
    if (Number.isNaN(y[i])) continue;
    context.beginPath();
    context.arc(at.px(x[i]), at.py(y[i]), 1.2 + width / 2, 0, 2 * Math.PI);
    context.fill();
  }
}

/** A line through some points; NaN interrupts it. */
function stroke(context, x, y, { px, py }, from, to) {
  context.beginPath();
  let pen = false;
  for (let i = from; i < to; i++) {
    if (Number.isNaN(y[i])) { pen = false; continue; }
    if (pen) context.lineTo(px(x[i]), py(y[i])); else context.moveTo(px(x[i]), py(y[i]));
    pen = true;
  }
  context.stroke();
}
