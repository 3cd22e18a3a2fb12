"use strict";
// Elements, numbers for people, tables, and what the reader has chosen.

/// An element: make("a", {href: "#x", text: "there", onclick: act}, child, …). Attributes that are false or null are left out.
function make(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "text") made.textContent = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  made.append(...children.filter(child => child != null));
  return made;
}

const at = id => document.getElementById(id);
const last = list => list[list.length - 1];
const sum = list => list.reduce((total, value) => total + (value || 0), 0);
const has = value => value !== null && value !== undefined;
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
/// The least and the greatest of the numbers in a list, or null if it has none.
function extent(list) {
  let low = Infinity, high = -Infinity;
  for (const value of list) {
    if (!has(value) || !isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : null;
}

/// The first index of a sorted list whose value is not below `value`.
function lower_bound(list, value, key = each => each) {
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (key(list[middle]) < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

const times = "\u00d7", dash = "\u2013", dot = " \u00b7 ", space = "\u00a0";

function scaled(value, step, units, digits = 3) {
  let unit = 0, size = Math.abs(value);
  while (size >= step && unit + 1 < units.length) {
    size /= step;
    ++unit;
  }
  const signed = value < 0 ? -size : size;
  const text = unit === 0 && Number.isInteger(size) ? String(signed)
    : size >= 10 ** digits ? String(Math.round(signed)) : signed.toPrecision(digits);
  return text + units[unit];
}

/// Functions that make text for people of numbers, by the kind of number. Exact numbers are in the tables.
const shown = {
  bytes: value => scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"].map(unit => space + unit)),
  count: value => scaled(value, 1000, ["", "k", "M", "G", "T", "P"]),
  rate: unit => value => scaled(value, 1000, ["", "k", "M", "G", "T", "P", "E"]) + space + unit + "/s",
  exact: value => value.toLocaleString("en"),
  share: value => (100 * value).toFixed(value < 0.0995 ? 1 : 0) + space + "%",
  number: value => value === 0 ? "0" : Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3
    ? value.toExponential(2) : String(Number(value.toPrecision(5))),
  seconds: value => {
    const size = Math.abs(value);
    if (size === 0) return "0" + space + "s";
    if (size < 0.9995e-6) return (value * 1e9).toPrecision(3) + space + "ns";
    if (size < 0.9995e-3) return (value * 1e6).toPrecision(3) + space + "\u00b5s";
    if (size < 0.9995) return (value * 1e3).toPrecision(3) + space + "ms";
    if (size < 99.95) return value.toPrecision(3) + space + "s";
    const whole = Math.round(value), minutes = Math.floor(whole / 60);
    if (minutes < 100) return minutes + " min " + (whole % 60) + " s";
    return Math.floor(minutes / 60) + " h " + (minutes % 60) + " min";
  },
};
const six_digits = value => has(value) ? Number(value.toPrecision(6)) : null;
const or_dash = (show, value) => has(value) ? show(value) : dash;
/// A time such as 2026-11-28T21:00:00.123Z, as people write it.
const shown_time = text => text ? text.replace("T", " ").replace(/(\.\d+)?Z$/, " UTC") : dash;
const plural = (count, word) => count + " " + word + (count === 1 ? "" : "s");
/// Numbers as ranges: 0–3, 6.
function ranges(numbers) {
  const parts = [];
  for (let i = 0; i < numbers.length; ++i) {
    const first = numbers[i];
    while (i + 1 < numbers.length && numbers[i + 1] === numbers[i] + 1) ++i;
    parts.push(first === numbers[i] ? String(first) : first + dash + numbers[i]);
  }
  return parts.join(", ");
}

/// The Tab key stops at a box only while the box's content is larger than the box.
const scrolling = new ResizeObserver(entries => {
  for (const {target} of entries) {
    if (target.scrollWidth > target.clientWidth || target.scrollHeight > target.clientHeight) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }
});

/// An element that scrolls by itself.
function scroll_box(tag, name, ...children) {
  const box = make(tag, {class: "scroll", role: "region", "aria-label": name}, ...children);
  scrolling.observe(box);
  return box;
}

/// A table in a box that scrolls by itself. `head`: texts; `rows`: lists of texts, numbers or elements, the first of which is the row's heading.
function table(caption, head, rows, numbers_from = 1) {
  const cell = (value, column, tag) => {
    const kind = column >= numbers_from ? "number" : String(value).length > 60 ? "long" : null;
    const made = make(tag, {class: kind, scope: tag === "th" ? "row" : null});
    made.append(value instanceof Node ? value : has(value) ? String(value) : dash);
    return made;
  };
  const body = rows.map(row => make("tr", {}, ...row.map((value, column) => cell(value, column, column === 0 ? "th" : "td"))));
  const columns = head.map((text, column) => make("th", {scope: "col", class: column >= numbers_from ? "number" : null, text}));
  return scroll_box("div", caption, make("table", {}, make("caption", {text: caption}), make("thead", {}, make("tr", {}, ...columns)),
                                         make("tbody", {}, ...body)));
}

/// What the reader has chosen. It outlives the elements, which a live page makes anew.
const chosen = {
  run: 0, x: "step", smooth: 0, logarithmic: false, hidden: new Set(), open: new Set(), views: new Map(),
  quantity: "computing_s", filter: "", tensor: null, transfers: true,
};

/// Details that stay open or closed when the page is made anew. `fill` makes the content when it is opened for the first time.
function details(id, title, fill) {
  const made = make("details", {id, open: chosen.open.has(id)}, make("summary", {id: id + "-title", text: title}));
  const show = () => { if (made.children.length === 1) made.append(...[fill()].flat()); };
  if (made.open) show();
  made.fill = show;
  made.addEventListener("toggle", () => {
    if (made.open) show();
    if (made.open) chosen.open.add(id);
    else chosen.open.delete(id);
  });
  return made;
}

/// Colours by name, as the style sheet has them for light and dark.
function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}
const hues = 8;
const series_colour = number => colour("series-" + number % hues);
const dashes = [[], [7, 3], [12, 3], [9, 3, 2, 3], [6, 2, 2, 2, 2, 2]];

function legend(entries) {
  return make("ul", {class: "legend"}, ...entries.map(([name, variable]) => {
    const key = make("span", {class: "key", "aria-hidden": "true"});
    key.style.background = "var(--" + variable + ")";
    return make("li", {}, key, name);
  }));
}

/// A canvas that is as sharp as the screen, and is drawn again when its size or the colours change.
class Surface {
  constructor(properties, draw) {
    this.canvas = make("canvas", properties);
    this.draw_all = draw;
    this.width = this.height = 0;
    Surface.all.add(this);
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.canvas);
  }

  draw() {
    if (!this.canvas.isConnected) return;
    const box = this.canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
    if (box.width === 0) return;
    this.width = box.width;
    this.height = box.height;
    const columns = Math.round(box.width * ratio), rows = Math.round(box.height * ratio);
    if (this.canvas.width !== columns || this.canvas.height !== rows) {
      this.canvas.width = columns;
      this.canvas.height = rows;
    }
    const pen = this.canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, box.width, box.height);
    pen.font = "12px system-ui, sans-serif";
    this.draw_all(pen, box.width, box.height);
  }

  /// Draws at the next frame, once.
  soon() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  static draw_everything() {
    for (const surface of Surface.all) surface.draw();
  }

  /// Draws the surfaces that were not drawn yet, and forgets those that have left the page.
  static draw_new() {
    for (const surface of Surface.all) {
      if (!surface.canvas.isConnected) {
        surface.observer.disconnect();
        Surface.all.delete(surface);
      } else if (surface.width === 0) surface.draw();
    }
  }
}
Surface.all = new Set();
