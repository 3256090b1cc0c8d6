"use strict";
// A strip below the curves: the number of models in automatically chosen windows, on a log scale.

const STRIP = { height: 80, above: 28 }; // pixels; the title is above it

class Strip {
  constructor(chart) { this.chart = chart; }

  /** Its height in pixels: 0 unless a curve has a window that varies. */
  room() { return this.varied(this.chart.lines).length ? STRIP.height + STRIP.above : 0; }

  /** The lines of single seeds whose windows vary. */
  varied(lines) { return lines.flatMap((line) => line.parts || [line]).filter((line) => line.window); }

  /** The smallest and largest window between two rounds, with a margin. */
  range(lines, x0, x1) {
    let [low, high] = [Infinity, -Infinity];
    for (const { window } of lines) {
      for (let i = 0; i < window.x.length; i++) {
        if (window.x[i] < x0 || window.x[i] > x1) continue;
        low = Math.min(low, window.y[i]);
        high = Math.max(high, window.y[i]);
      }
    }
    return low > high ? [1, 10] : [low / 1.2, high * 1.2];
  }

  /** Draw the windows of these lines, with the lower edge at `bottom`. */
  paint(context, width, bottom, lines, [x0, x1], draw) {
    const own = this.varied(lines);
    const [low, high] = this.range(own, x0, x1);
    const top = bottom - STRIP.height;
    const py = scale(true, low, high, bottom, top);
    this.chart.rules(context, width, ticks(low, high, true, STRIP.height / 40), py);
    context.textAlign = "left";
    context.textBaseline = "bottom";
    context.fillText("models in the window", this.chart.at.pad.left, top - 6);
    this.chart.clipped(context, width, top, bottom, () => {
      for (const line of own) draw(line, line.window, py, []); // windows jump, which dashes would hide
    });
  }

  /** The number of averaged models in a round, as text; empty if it is not known. */
  told({ window }, round) {
    const at = window ? window.x.indexOf(round) : -1;
    return at < 0 ? "" : `, mean of ${window.y[at]} model${window.y[at] === 1 ? "" : "s"}`;
  }
}
