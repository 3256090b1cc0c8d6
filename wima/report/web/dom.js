"use strict";
// Data, and small helpers for elements and numbers.  All text becomes text nodes, never HTML.

const DATA = JSON.parse(document.getElementById("data").textContent);
const MEASURE = DATA.measure;
const UNIT = MEASURE.share ? " %" : "";
const PALETTE = 12; // colours --c0 ... --c11 in page.css
const RUNS_AT_ONCE = 100; // shown before "Show all"
const ROWS_AT_ONCE = 25;

/** An element; attributes that start with "on" are listeners, children are elements or strings. */
function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

/** The same for SVG elements. */
function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** A number with a true minus sign; empty for null. */
function format(value, signed = false, digits = MEASURE.digits) {
  if (value === null || value === undefined) return "";
  const text = Math.abs(value).toFixed(digits);
  const negative = value < 0 && Number(text) !== 0;
  return (negative ? "\u2212" : signed ? "+" : "") + text;
}

/** A difference with an arrow, a sign and a colour: blue is better, orange is worse, none if unclear. */
function difference(value, what, unclear = false) {
  const text = format(value, true);
  const good = value * MEASURE.sign;
  const none = Number(Math.abs(value).toFixed(MEASURE.digits)) === 0;
  const kind = unclear ? "unclear" : none ? "even" : good > 0 ? "better" : "worse";
  const arrow = none ? "=" : value > 0 ? "\u25b2" : "\u25bc";
  const told = unclear ? "not clearly better or worse than" : none ? "equal to" : `${kind} than`;
  const label = `${text}${UNIT}, ${told} ${what}`;
  return el("span", { class: `difference ${kind}`, title: label },
    el("span", { "aria-hidden": "true" }, arrow), text, el("span", { class: "hidden" }, ` ${kind}`));
}

/** Seconds in a readable unit. */
function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 7200) return `${(seconds / 60).toFixed(0)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

/** The words of a filter; a match contains all of them. */
function matcher(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return (candidate) => words.every((word) => candidate.toLowerCase().includes(word));
}

/** Rounds and values of a curve, decoded once from the integers in the data. */
function points(curve, digits = MEASURE.digits) {
  if (!curve.y) {
    curve.y = curve.v.map((v) => (v === null ? NaN : v / 10 ** digits));
    curve.x = curve.t || curve.v.map((_, i) => curve.first + i * curve.step);
  }
  return curve;
}

/** The mean over the last `window` rounds at each point. */
function smoothed(curve, window) {
  const { x, y } = points(curve);
  if (window < 2) return { x, y };
  const out = new Array(y.length);
  let begin = 0, sum = 0, count = 0;
  for (let i = 0; i < y.length; i++) {
    if (!Number.isNaN(y[i])) { sum += y[i]; count++; }
    for (; x[begin] <= x[i] - window; begin++) {
      if (!Number.isNaN(y[begin])) { sum -= y[begin]; count--; }
    }
    out[i] = count && !Number.isNaN(y[i]) ? sum / count : NaN;
  }
  return { x, y: out };
}

/** The colour of a custom property, for the canvas; cached until the theme changes. */
const COLOURS = new Map();
function colour(name) {
  if (COLOURS.has(name)) return COLOURS.get(name);
  const probe = el("span", { class: "hidden" });
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  COLOURS.set(name, found);
  return found;
}

/** A label with its control. */
function field(text, control) {
  return el("label", { class: "field" }, el("span", {}, text), control);
}
