// Lines over a common x axis. Charts of a group share a view: they zoom together, and have one cursor.

/// The part of the x axis that a group of charts shows.
class View {
  constructor() {
    this.range = null;   // all, or [from, to]
    this.full = [0, 1];
    this.cursor = null;
    this.charts = new Set();
  }

  get low() { return this.range ? this.range[0] : this.full[0]; }
  get high() { return this.range ? this.range[1] : this.full[1]; }

  /// Shows the part `range` of the axis, or the whole axis if it is null. Makes the part lie within the whole, and have a length.
  show(range) {
    const whole = this.full[1] - this.full[0];
    if (range) {
      const length = clamp(range[1] - range[0], whole * 1e-6, whole);
      const low = clamp(range[0], this.full[0], this.full[1] - length);
      range = length >= whole ? null : [low, low + length];
    }
    this.range = range;
    this.changed();
  }

  zoom(factor, about = (this.low + this.high) / 2) {
    this.show([about - (about - this.low) / factor, about + (this.high - about) / factor]);
  }

  pan(share) {
    const by = share * (this.high - this.low);
    if (this.range) this.show([this.low + by, this.high + by]);
  }

  point(x) {
    this.cursor = x;
    this.changed();
  }

  changed() {
    for (const chart of this.charts) chart.update();
  }

  /// The view of a group of charts, which outlives them.
  static of(group) {
    if (!chosen.views.has(group)) chosen.views.set(group, new View());
    return chosen.views.get(group);
  }
}

/// Round numbers from `low` to `high`, about `count` of them.
function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find(each => each * power >= rough) * power;
  const list = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9 && list.length < 100; ++i) list.push(i * step);
  return list;
}

/// The text of a round number, without zeros behind its point.
const tick_text = text => text.replace(/(\.\d*?)0+(?!\d)/, "$1").replace(/\.(?!\d)/, "");

function logarithmic_ticks(low, high, count) {
  const list = [], decades = Math.log10(high / low);
  if (decades < 0.7) return ticks(low, high, 1.5 * count).filter(value => value > 0);
  const each = Math.max(1, Math.ceil(decades / count));
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += each) {
    for (const factor of decades < 2.5 ? [1, 2, 5] : [1]) {
      const value = factor * 10 ** power;
      if (value >= low && value <= high) list.push(value);
    }
  }
  return list;
}

/// A moving average in which the newest number has the share 1 − weight, without the bias of its first steps.
function smoothed(values, weight) {
  if (weight === 0) return values;
  let mean = 0, share = 1;
  return values.map(value => {
    mean = weight * mean + (1 - weight) * value;
    share *= weight;
    return mean / (1 - share);
  });
}

/// Draws a line through the points from `first` to `end`. Where many points share a pixel, the line has their least and greatest.
function trace_line(pen, x, y, first, end, place_x, place_y, width) {
  pen.beginPath();
  if (end - first <= 3 * width) {
    for (let i = first; i < end; ++i) pen.lineTo(place_x(x[i]), place_y(y[i]));
  } else {
    let column = null, low = 0, high = 0;
    const flush = () => {
      pen.lineTo(column, place_y(low));
      pen.lineTo(column, place_y(high));
    };
    for (let i = first; i < end; ++i) {
      const pixel = Math.round(place_x(x[i]));
      if (pixel !== column) {
        if (column !== null) flush();
        column = pixel;
        low = high = y[i];
      } else if (y[i] < low) low = y[i];
      else if (y[i] > high) high = y[i];
    }
    if (column !== null) flush();
  }
  pen.stroke();
}

/// Whether the cursor goes when a pointer leaves. When a finger is lifted, the cursor stays where the finger tapped.
const is_gone = event => event.pointerType !== "touch";

/// What the pointer, the wheel and keys do on a drawing that has a view. The drawing says which value a pixel is (`value_at`), tells what is under
/// the pointer (`hover`, `leave`), and knows what has the focus (`focus`) and what is next to that (`go`).
function listen(plot) {
  const {canvas, view} = plot, on = (kind, act, options) => canvas.addEventListener(kind, act, options);
  const pixel = event => event.clientX - canvas.getBoundingClientRect().left;
  const within = event => clamp(pixel(event), plot.left, plot.left + plot.wide);
  const hover = event => plot.hover(pixel(event), event.clientY - canvas.getBoundingClientRect().top);
  on("pointerdown", event => {
    if (event.button !== 0 || !plot.wide) return;
    plot.drag = {from: within(event), to: within(event)};
    hover(event);
    if (event.isTrusted) canvas.setPointerCapture(event.pointerId);
  });
  on("pointermove", event => {
    if (!plot.wide) return;
    if (plot.drag) plot.drag.to = within(event);
    hover(event);
  });
  on("pointerup", () => {
    const drag = plot.drag;
    plot.drag = null;
    if (drag && Math.abs(drag.to - drag.from) > 5) view.show([drag.from, drag.to].sort((a, b) => a - b).map(x => plot.value_at(x)));
    else plot.surface.soon();
  });
  on("pointercancel", () => { plot.drag = null; });
  on("pointerleave", event => { if (!plot.drag && is_gone(event)) plot.leave(); });
  on("blur", () => plot.leave());
  on("dblclick", () => view.show(null));
  on("wheel", event => {
    if (event.ctrlKey) view.zoom(Math.exp(-event.deltaY * 0.003), plot.value_at(pixel(event)));
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) view.pan((event.deltaX || event.deltaY) / 800);
    else return;
    event.preventDefault();
  }, {passive: false});
  on("keydown", event => { if (act_on_key(plot, event)) event.preventDefault(); });
}

/// Whether the key means something here.
function act_on_key(plot, event) {
  if (event.altKey || event.ctrlKey || event.metaKey) return false;
  const side = {ArrowRight: 1, ArrowLeft: -1, PageUp: 20, PageDown: -20, End: Infinity, Home: -Infinity}[event.key];
  const down = {ArrowDown: 1, ArrowUp: -1}[event.key], factor = {"+": 1.5, "=": 1.5, "-": 1 / 1.5}[event.key];
  if (side && event.shiftKey) plot.view.pan(Math.sign(side) * 0.1);
  else if (side || down) return plot.go(side || 0, down || 0);
  else if (factor) plot.view.zoom(factor, plot.focus());
  else if (event.key === "0" || event.key === "Escape") plot.view.show(null);
  else return false;
  return true;
}

function draw_selection(plot, pen, top, height) {
  if (!plot.drag) return;
  pen.fillStyle = colour("select");
  pen.fillRect(Math.min(plot.drag.from, plot.drag.to), top, Math.abs(plot.drag.to - plot.drag.from), height);
}

/// A chart. `series`: [{name, x, y, hue, style, points}], sorted by x and without gaps; `marks`: [{x, text, kind}];
/// `show` and `show_x` make text of numbers, `show_y` of those of the axis. `outliers`: few numbers far above all others may lie beyond it.
class Chart {
  constructor({id, title, series, marks = [], group, show, show_y = show, show_x, x_title, smooth = 0, logarithmic = false, zero = false,
               outliers = false}) {
    Object.assign(this, {id, title, marks, show, show_y, show_x, x_title, zero, outliers});
    this.view = View.of(group);
    this.view.charts.add(this);
    this.series = series.map(each => ({...each, raw: each.y, y: each.points ? each.y : smoothed(each.y, smooth)}));
    this.logarithmic = logarithmic && this.series.every(each => each.y.every(value => value > 0));
    this.surface = new Surface({id, tabindex: 0, role: "slider", "aria-roledescription": "chart", class: "plot"},
                               (pen, width, height) => this.draw(pen, width, height));
    this.canvas = this.surface.canvas;
    this.readout = make("p", {class: "readout"});
    this.numbers = details(id + "-numbers", "Numbers", () => this.table());
    this.element = make("figure", {class: "chart"}, make("figcaption", {text: title}), this.readout, this.canvas, this.numbers);
    listen(this);
    this.update();
  }

  update() {
    this.tell();
    this.surface.soon();
    if (!this.numbers.open || this.waiting) return;
    this.waiting = setTimeout(() => {
      this.waiting = null;
      if (this.numbers.open && this.canvas.isConnected) this.numbers.lastChild.replaceWith(this.table());
    }, 200);
  }

  // Numbers.

  visible(each) {
    const first = lower_bound(each.x, this.view.low), end = lower_bound(each.x, this.view.high + 1e-12 * Math.abs(this.view.high));
    const beyond = each.x[end] === this.view.high ? end + 1 : end;
    return [first, beyond];
  }

  nearest(each, x) {
    const after = lower_bound(each.x, x);
    if (after === 0) return 0;
    if (after === each.x.length) return after - 1;
    return x - each.x[after - 1] <= each.x[after] - x ? after - 1 : after;
  }

  /// Shows the numbers of the lines at the cursor or, without a cursor, their last numbers.
  tell() {
    const parts = [], cursor = this.view.cursor;
    for (const each of this.series) {
      if (each.x.length === 0) continue;
      const index = cursor === null ? each.x.length - 1 : this.nearest(each, cursor);
      parts.push({each, x: each.x[index], value: each.raw[index]});
    }
    const place = cursor === null ? (parts.length ? Math.max(...parts.map(part => part.x)) : 0) : parts.length ? parts[0].x : cursor;
    const texts = parts.map(part => part.each.name + " " + this.show(part.value) +
      (Math.abs(part.x - place) > 1e-9 * Math.abs(place) ? " at " + this.show_x(part.x) : ""));
    this.readout.replaceChildren(make("span", {text: (cursor === null ? "last, " : "") + this.x_title + " " + this.show_x(place)}),
                                 ...parts.map((part, i) => make("span", {class: "value"}, line_key(part.each), texts[i])));
    const values = {"aria-label": this.title + " over " + this.x_title, "aria-valuemin": this.view.low,
                    "aria-valuemax": this.view.high, "aria-valuenow": clamp(place, this.view.low, this.view.high),
                    "aria-valuetext": this.x_title + " " + this.show_x(place) + ": " + texts.join(", ")};
    for (const [name, value] of Object.entries(values)) this.canvas.setAttribute(name, value);
  }

  table() {
    const most = 200, lines = this.series.map(each => {
      const [first, end] = this.visible(each);
      return new Map(each.x.slice(first, end).map((x, i) => [x, each.raw[first + i]]));
    });
    const places = [...new Set(lines.flatMap(line => [...line.keys()]))].sort((a, b) => a - b);
    const every = Math.ceil(places.length / most);
    const kept = places.filter((_, i) => i % every === 0 || i === places.length - 1);
    const caption = this.title + (every > 1 ? ": " + kept.length + " of " + places.length + " places; zoom in to have all" : "");
    return table(caption, [this.x_title, ...this.series.map(each => each.name)],
                 kept.map(x => [x, ...lines.map(line => line.get(x))]), 0);
  }

  // Drawing.

  scales(width, height) {
    const left = 58, right = 12, top = 10, bottom = 24;
    const {low, high} = this.view, length = high - low || 1;
    let values = null;
    for (const each of this.series) {
      const [first, end] = this.visible(each), found = extent(each.y.slice(Math.max(0, first - 1), end + 1));
      if (found) values = values ? [Math.min(values[0], found[0]), Math.max(values[1], found[1])] : found;
    }
    let [floor, ceiling] = values || [0, 1];
    const usual = this.outliers && !this.logarithmic ? this.usual_top() : ceiling, beyond = ceiling > usual ? ceiling : null;
    ceiling = Math.min(ceiling, usual);
    if (this.zero) floor = Math.min(0, floor);
    const to = this.logarithmic ? Math.log10 : value => value, back = this.logarithmic ? value => 10 ** value : value => value;
    const room = (to(ceiling) - to(floor)) * 0.06 || (this.logarithmic ? 0.1 : Math.abs(ceiling) * 0.1 || 1);
    ceiling = back(to(ceiling) + room);
    if (!this.zero || floor !== 0) floor = back(to(floor) - room);
    const tall = height - top - bottom, wide = width - left - right;
    return {left, right, top, bottom, wide, tall, floor, ceiling, beyond,
            x: value => left + (value - low) / length * wide,
            y: value => top + tall - (to(value) - to(floor)) / (to(ceiling) - to(floor)) * tall,
            value_at: pixel => low + clamp((pixel - left) / wide, 0, 1) * length};
  }

  /// The top of the axis if a few numbers are far above all others; otherwise infinity.
  usual_top() {
    const all = this.series.flatMap(each => each.y.slice(...this.visible(each))).sort((a, b) => a - b);
    const most = all[Math.floor(0.97 * (all.length - 1))];
    return all.length > 20 && last(all) > 3 * most ? 1.5 * most : Infinity;
  }

  draw(pen, width, height) {
    const place = this.place = this.scales(width, height);
    this.left = place.left;
    this.wide = place.wide;
    this.draw_axes(pen, place, width, height);
    pen.save();
    pen.beginPath();
    pen.rect(place.left, place.top - 4, place.wide + 4, place.tall + 8);
    pen.clip();
    this.draw_marks(pen, place);
    for (const each of this.series) this.draw_line(pen, place, each);
    pen.restore();
    this.draw_cursor(pen, place);
  }

  draw_axes(pen, place, width, height) {
    pen.strokeStyle = colour("grid");
    pen.fillStyle = colour("soft");
    pen.lineWidth = 1;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    const values = (this.logarithmic ? logarithmic_ticks : ticks)(place.floor, place.ceiling, place.tall / 36);
    for (const value of values) {
      const y = Math.round(place.y(value)) + 0.5;
      if (y < place.top || y > place.top + place.tall + 1) continue;
      pen.beginPath();
      pen.moveTo(place.left, y);
      pen.lineTo(width - place.right, y);
      pen.stroke();
      pen.fillText(tick_text(this.show_y(value)), place.left - 6, y);
    }
    pen.textBaseline = "top";
    if (place.beyond !== null) pen.fillText("\u2191 up to " + this.show(place.beyond), width - place.right, place.top - 8);
    pen.textAlign = "center";
    let free = 0;
    for (const value of ticks(this.view.low, this.view.high, Math.max(5, place.wide / 90))) {  // at least two of 5 ticks are in view
      const x = place.x(value);
      pen.beginPath();
      pen.moveTo(x, place.top + place.tall);
      pen.lineTo(x, place.top + place.tall + 4);
      pen.stroke();
      const text = tick_text(this.show_x(value)), half = pen.measureText(text).width / 2;
      const middle = Math.min(x, width - half - 1);
      if (middle - half < free) continue;
      pen.fillText(text, middle, height - place.bottom + 8);
      free = middle + half + 4;
    }
  }

  draw_marks(pen, place) {
    pen.textAlign = "left";
    pen.textBaseline = "top";
    for (const mark of this.marks) {
      if (mark.x < this.view.low || mark.x > this.view.high) continue;
      const x = Math.round(place.x(mark.x)) + 0.5;
      pen.strokeStyle = pen.fillStyle = colour(mark.kind === "restart" ? "bad" : "faint");
      pen.lineWidth = mark.kind === "restart" ? 2 : 1;
      pen.setLineDash(mark.kind === "restart" ? [] : [1, 4]);
      pen.beginPath();
      pen.moveTo(x, place.top);
      pen.lineTo(x, place.top + place.tall);
      pen.stroke();
      if (mark.kind === "restart") pen.fillText("restart", x + 3, place.top);
    }
    pen.setLineDash([]);
  }

  draw_line(pen, place, each) {
    const [first, end] = this.visible(each), from = Math.max(0, first - 1), to = Math.min(each.x.length, end + 1);
    pen.strokeStyle = pen.fillStyle = series_colour(each.hue);
    pen.lineJoin = "round";
    if (each.y !== each.raw) {
      pen.globalAlpha = 0.25;
      pen.lineWidth = 1;
      trace_line(pen, each.x, each.raw, from, to, place.x, place.y, place.wide);
      pen.globalAlpha = 1;
    }
    pen.lineWidth = 1.75;
    pen.setLineDash(dash_of(each));
    trace_line(pen, each.x, each.y, from, to, place.x, place.y, place.wide);
    pen.setLineDash([]);
    if (!each.points && to - from > 1) return;
    for (let i = from; i < to && to - from < place.wide / 4; ++i) {
      pen.beginPath();
      pen.arc(place.x(each.x[i]), place.y(each.y[i]), 2.75, 0, 2 * Math.PI);
      pen.fill();
    }
  }

  draw_cursor(pen, place) {
    draw_selection(this, pen, place.top, place.tall);
    const cursor = this.view.cursor;
    if (cursor === null || cursor < this.view.low || cursor > this.view.high) return;
    pen.strokeStyle = colour("text");
    pen.lineWidth = 1;
    pen.globalAlpha = 0.6;
    pen.beginPath();
    pen.moveTo(place.x(cursor), place.top);
    pen.lineTo(place.x(cursor), place.top + place.tall);
    pen.stroke();
    pen.globalAlpha = 1;
    for (const each of this.series) {
      if (each.x.length === 0) continue;
      const index = this.nearest(each, cursor);
      if (each.x[index] < this.view.low || each.x[index] > this.view.high) continue;
      pen.fillStyle = series_colour(each.hue);
      pen.beginPath();
      pen.arc(place.x(each.x[index]), place.y(each.y[index]), 3.5, 0, 2 * Math.PI);
      pen.fill();
    }
  }

  // The reader's hands.

  value_at(pixel) { return this.place.value_at(pixel); }
  focus() { return this.view.cursor === null ? undefined : this.view.cursor; }
  leave() { this.view.point(null); }

  hover(x) {
    const value = this.value_at(x), each = this.series.find(one => one.x.length);
    this.view.point(each ? each.x[this.nearest(each, value)] : value);
  }

  /// Moves the cursor by a number of points, and the view with it.
  go(by, down) {
    const each = this.series.reduce((most, one) => !most || one.x.length > most.x.length ? one : most, null);
    if (down || !each) return false;
    const [first, end] = this.visible(each);
    const start = this.view.cursor === null ? (by > 0 ? first - 1 : end) : this.nearest(each, this.view.cursor);
    const next = each.x[clamp(start + by, 0, each.x.length - 1)], length = this.view.high - this.view.low;
    if (next < this.view.low) this.view.pan((next - this.view.low) / length);
    if (next > this.view.high) this.view.pan((next - this.view.high) / length);
    this.view.point(next);
    return true;
  }
}

/// How a line is drawn: those of points, such as validation, are dotted.
const dash_of = each => each.points ? [2, 3] : dashes[(each.style || 0) % dashes.length];

/// A piece of a line as it is drawn, for a legend.
function line_key(each) {
  const key = make("span", {class: "line-key", "aria-hidden": "true"});
  const ink = "var(--series-" + each.hue % hues + ")";
  let end = 0;
  const stops = dash_of(each).map((length, i) => (i % 2 ? "transparent " : ink + " ") + end + "px " + (end += length) + "px");
  key.style.background = stops.length ? "repeating-linear-gradient(90deg, " + stops.join(", ") + ")" : ink;
  return key;
}
