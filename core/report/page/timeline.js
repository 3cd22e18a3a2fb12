// Shows when each rank did what in traced steps. Without a trace, it shows when plan expects the actions of the stages.

const outer_kinds = ["step", "function"], action_kinds = ["action", "operation"], wait_kinds = ["wait", "start"], label_width = 76;

/// Lanes of a trace, top down: for each rank its actions, what they consist of, and transfers. The spans of a lane do not overlap.
function lanes_of_trace(run, trace) {
  const lanes = [], steps = [];
  let begin = Infinity, end = -Infinity;
  for (const rank of trace.ranks) {
    const label = marked_rank(run, rank.rank), of_rank = {actions: [], parts: []}, transfers = [], is_wait = span => wait_kinds.includes(span.kind);
    for (const row of rank.rows) {
      const rest = [];
      for (const span of row.spans) {
        const kind = trace.kinds[span[5]], made = {begin: span[0], length: span[1], name: trace.names[span[2]], microbatch: span[3], kind};
        begin = Math.min(begin, made.begin);
        end = Math.max(end, made.begin + made.length);
        if (kind === "step") {
          if (rank === trace.ranks[0]) steps.push(made);
        } else if (action_kinds.includes(kind)) of_rank.actions.push(made);
        else if (row.name === "compute" && !outer_kinds.includes(kind)) of_rank.parts.push(made);
        else if (!outer_kinds.includes(kind)) rest.push(made);
      }
      if (rest.length) transfers.push({name: row.name, spans: rest});
    }
    const add = (name, spans, height, kind) => {
      if (spans.length === 0) return;
      spans.sort((a, b) => a.begin - b.begin);
      lanes.push({label, name, spans, height, kind, first: lanes.length === 0 || last(lanes).label !== label});
    };
    add("actions", of_rank.actions, 18, "action");
    const with_actions = of_rank.actions.length ? last(lanes) : null;
    add("compute", of_rank.parts, 12, "part");
    if (with_actions) with_actions.waits = of_rank.parts.filter(is_wait);
    for (const row of transfers) add(row.name, row.spans, 7, "transfer");
  }
  return {lanes, steps, begin, end, unit: "\u00b5s", show: value => shown.seconds((value - begin) * 1e-6), length: value => shown.seconds(value * 1e-6)};
}

function lanes_of_plan(timeline) {
  let end = 0;
  const lanes = timeline.stages.map(stage => {
    const spans = stage.spans.map(([begin, length, action, chunk, microbatch]) => {
      end = Math.max(end, begin + length);
      return {begin, length, name: chunk + action + microbatch, microbatch, kind: "action"};
    });
    spans.sort((a, b) => a.begin - b.begin);
    return {label: "stage " + stage.stage, name: has(stage.rank) ? "as on rank " + stage.rank : "", spans, height: 22, kind: "action", first: true};
  });
  const show = timeline.unit === "s" ? shown.seconds : value => shown.number(value) + (value === 1 ? " tick" : " ticks");
  return {lanes, steps: [], begin: 0, end, unit: timeline.unit, show, length: show};
}

/// Hatching in the colour of waiting, over another colour.
function hatching(pen, ground) {
  const tile = make("canvas", {width: 4, height: 4}), ink = tile.getContext("2d");
  ink.fillStyle = colour(ground);
  ink.fillRect(0, 0, 4, 4);
  ink.fillStyle = colour("wait");
  for (let i = 0; i < 4; ++i) ink.fillRect(i, 3 - i, 1.5, 1);
  return pen.createPattern(tile, "repeat");
}

class Timeline {
  constructor(content, group, id = "timeline-plot") {
    Object.assign(this, content);
    this.group = group;
    this.view = View.of(group);
    this.view.full = [this.begin, this.end > this.begin ? this.end : this.begin + 1];
    this.view.charts = new Set([this]);
    this.axis = this.steps.length ? 36 : 22;
    this.at = null;
    this.surface = new Surface({id, tabindex: 0, role: "application", "aria-roledescription": "timeline", class: "timeline-plot",
                                "aria-label": "Timeline. Left and right go from span to span, up and down from row to row; plus and minus zoom, 0 shows all."},
                               (pen, width, height) => this.draw(pen, width, height));
    this.canvas = this.surface.canvas;
    this.spacer = make("div");
    this.box = make("div", {class: "timeline", onscroll: () => this.surface.soon()}, this.canvas, this.spacer);
    this.readout = make("p", {class: "readout", role: "status"});
    this.lay_out();
    this.left = label_width;
    listen(this);
    this.tell();
  }

  /// Gives each lane that is shown its place.
  lay_out() {
    let top = this.axis + 2;
    this.seen = this.lanes.filter(lane => lane.kind !== "transfer" || chosen.transfers);
    for (const lane of this.seen) {
      if (lane.first) top += 6;
      lane.top = top;
      top += lane.height + 1;
    }
    this.total = top + 6;
    this.fit();
  }

  fit() {
    const most = document.documentElement.dataset.print ? 900 : Math.max(220, Math.round(window.innerHeight * 0.7));
    const height = Math.min(this.total, most);
    this.canvas.style.height = height + "px";
    this.box.style.maxHeight = height + "px";
    this.spacer.style.height = this.total - height + "px";
    this.surface.soon();
  }

  update() { this.tell(); }

  // Spans.

  place_x(time) { return label_width + (time - this.view.low) / (this.view.high - this.view.low) * this.wide; }

  /// The first span of a lane that ends after a time.
  first_after(lane, time) {
    const index = lower_bound(lane.spans, time, span => span.begin);
    return index > 0 && lane.spans[index - 1].begin + lane.spans[index - 1].length > time ? index - 1 : index;
  }

  /// The waits within an action.
  waits_of(lane, span) {
    const begin = lower_bound(lane.waits || [], span.begin, wait => wait.begin);
    return lane.waits ? lane.waits.slice(begin, lower_bound(lane.waits, span.begin + span.length, wait => wait.begin)) : [];
  }

  find(x, y) {
    if (x < label_width || y < this.axis) return null;
    const lane = this.seen.find(each => y + this.box.scrollTop >= each.top && y + this.box.scrollTop < each.top + each.height + 1);
    if (!lane) return null;
    const slack = (this.view.high - this.view.low) / this.wide, time = this.value_at(x), index = this.first_after(lane, time - slack);
    const span = lane.spans[index];
    return span && span.begin <= time + slack ? {lane, index} : null;
  }

  tell() {
    const found = this.at && this.at.lane.spans[this.at.index];
    const seen = this.steps.filter(step => step.begin < this.view.high && step.begin + step.length > this.view.low);
    const waited = found ? sum(this.waits_of(this.at.lane, found).map(wait => wait.length)) : 0;
    this.readout.textContent = (this.view.range ? "Shown: " : "All: ") + this.show(this.view.low) + " to " + this.show(this.view.high) +
      (seen.length ? ", " + (seen.length > 1 ? seen[0].name + " to " + last(seen).name : seen[0].name) : "") + ". " + (!found
      ? "Point at a span, tap it, or use the arrow keys."
      : this.at.lane.label + ", " + this.at.lane.name + ": " + found.name + ", from " + this.show(found.begin) + " for " + this.length(found.length) +
        (waited ? ", of which it waited " + this.length(waited) : "") + (found.microbatch >= 0 ? ", microbatch " + found.microbatch : "") + (found.kind === "action" ? "" : " (" + found.kind + ")"));
    this.surface.soon();
  }

  // Drawing.

  draw(pen, width, height) {
    this.wide = width - label_width - 6;
    const down = this.box.scrollTop;
    pen.save();
    pen.beginPath();
    pen.rect(0, this.axis, width, height - this.axis);
    pen.clip();
    this.drawn = 0;
    const paint = this.paint(pen);
    for (const lane of this.seen) {
      const y = lane.top - down;
      if (y + lane.height < this.axis || y > height) continue;
      if (lane.first) this.draw_label(pen, lane, y);
      this.draw_lane(pen, lane, y, paint);
    }
    this.draw_focus(pen, down);
    pen.restore();
    this.draw_axis(pen, width, height);
  }

  /// The colours, read once for a drawing.
  paint(pen) {
    const of_microbatch = Array.from({length: hues}, (_, i) => colour("fill-" + i));
    return {of_microbatch, wait: hatching(pen, "raised"), wait_within: hatching(pen, "pale"), transfer: colour("transfer"), other: colour("op"), ink: colour("ink")};
  }

  draw_label(pen, lane, y) {
    pen.fillStyle = colour("text");
    pen.textAlign = "left";
    pen.textBaseline = "top";
    pen.fillText(lane.label, 2, y + 2);
    pen.fillStyle = colour("grid");
    pen.fillRect(0, y - 4, label_width + this.wide, 1);
  }

  draw_lane(pen, lane, y, paint) {
    let edge = -Infinity;
    for (let i = this.first_after(lane, this.view.low); i < lane.spans.length; ++i) {
      const span = lane.spans[i];
      if (span.begin > this.view.high) break;
      const left = Math.max(label_width, this.place_x(span.begin));
      const right = Math.min(label_width + this.wide, this.place_x(span.begin + span.length));
      if (right <= edge + 0.25) continue;
      edge = Math.max(right, left + 0.75);
      this.draw_span(pen, lane, span, left, y, edge - left, paint);
      ++this.drawn;
    }
  }

  draw_span(pen, lane, span, x, y, width, paint) {
    const filled = span.microbatch >= 0 ? paint.of_microbatch[span.microbatch % hues] : paint.other, gap = width > 4 ? 0.75 : 0;
    pen.fillStyle = lane.kind === "transfer" ? paint.transfer : wait_kinds.includes(span.kind) ? paint.wait : filled;
    pen.globalAlpha = lane.kind === "part" && !wait_kinds.includes(span.kind) ? 0.75 : 1;
    pen.fillRect(x, y, width - gap, lane.height);
    pen.globalAlpha = 1;
    if (lane.kind !== "action") return;
    if (width > 2) this.draw_waits(pen, lane, span, x, y, width - gap, paint);
    const kind = /^\d+([FBIW])\d+$/.exec(span.name);
    pen.fillStyle = paint.ink;
    if (kind && kind[1] !== "F") {
      pen.globalAlpha = 0.75;
      const strip = kind[1] === "W" ? 2 : 4;
      pen.fillRect(x, y + lane.height - strip, width - gap, strip);
      pen.globalAlpha = 1;
    }
    const text = kind ? span.name.replace(/^\d+/, "") : span.name, wide = pen.measureText(text).width;
    if (width < 18 || wide > width - 6) return;
    pen.fillStyle = filled;  // a name stands on its action's colour, not on hatching
    pen.fillRect(x + 1, y, wide + 4, 13);
    pen.fillStyle = paint.ink;
    pen.textAlign = "left";
    pen.textBaseline = "top";
    pen.fillText(text, x + 3, y + 1);
  }

  /// Draws the parts of an action in which its rank waited. Short ones that share a pixel blend there by their lengths.
  draw_waits(pen, lane, span, x, y, width, paint) {
    pen.fillStyle = paint.wait_within;
    for (const wait of this.waits_of(lane, span)) {
      const left = Math.max(x, this.place_x(wait.begin)), right = Math.min(x + width, this.place_x(wait.begin + wait.length));
      if (right > left) pen.fillRect(left, y, right - left, lane.height);
    }
  }

  draw_focus(pen, down) {
    draw_selection(this, pen, this.axis, this.total);
    const span = this.at && this.at.lane.spans[this.at.index];
    if (!span || !this.seen.includes(this.at.lane)) return;
    pen.strokeStyle = colour("text");
    pen.lineWidth = 2;
    const left = this.place_x(span.begin);
    pen.strokeRect(left, this.at.lane.top - down, Math.max(2, this.place_x(span.begin + span.length) - left), this.at.lane.height);
  }

  draw_axis(pen, width, height) {
    pen.fillStyle = colour("soft");
    pen.strokeStyle = colour("grid");
    pen.lineWidth = 1;
    pen.textBaseline = "top";
    pen.textAlign = "center";
    const {low, high} = this.view;
    for (const value of ticks(low - this.begin, high - this.begin, this.wide / 110)) {
      const x = Math.round(this.place_x(value + this.begin)) + 0.5, text = tick_text(this.show(value + this.begin)), half = pen.measureText(text).width / 2;
      pen.fillText(text, clamp(x, label_width + half, width - half), 3);
      pen.beginPath();
      pen.moveTo(x, 18);
      pen.lineTo(x, 22);
      pen.stroke();
    }
    pen.strokeStyle = pen.fillStyle = colour("soft");
    pen.setLineDash([2, 3]);
    pen.textAlign = "left";
    let free = 0;
    for (const step of this.steps) {
      const x = Math.round(this.place_x(step.begin)) + 0.5, end = this.place_x(step.begin + step.length);
      if (end > label_width && x < width && Math.max(x, label_width) >= free) {
        pen.fillText(step.name, Math.max(x, label_width) + 3, 23);
        free = Math.max(x, label_width) + pen.measureText(step.name).width + 9;
      }
      if (x < label_width || x > width) continue;
      pen.beginPath();
      pen.moveTo(x, 22);
      pen.lineTo(x, height);
      pen.stroke();
    }
    pen.setLineDash([]);
  }

  table() {
    const most = 200, rows = [];
    let left_out = 0;
    for (const lane of this.seen.filter(each => each.kind === "action" || this.view.range)) {
      for (let i = this.first_after(lane, this.view.low); i < lane.spans.length && lane.spans[i].begin <= this.view.high; ++i) {
        const span = lane.spans[i];
        if (rows.length === most) ++left_out;
        else rows.push([lane.label, lane.name, span.name, span.kind, span.microbatch >= 0 ? span.microbatch : null,
                        ...[span.begin - this.begin, span.length].map(value => Number(value.toPrecision(9)))]);
      }
    }
    return table("Spans of the part that is shown" + (left_out ? ", " + left_out + " more if you zoom in" : ""),
                 ["rank", "row", "name", "kind", "microbatch", "begin (" + this.unit + ")", "length (" + this.unit + ")"], rows, 4);
  }

  // The reader's hands.

  value_at(pixel) { return this.view.low + clamp((pixel - this.left) / this.wide, 0, 1) * (this.view.high - this.view.low); }
  leave() {}

  focus() {
    const span = this.at && this.at.lane.spans[this.at.index];
    return span ? span.begin + span.length / 2 : undefined;
  }

  hover(x, y) {
    this.at = this.find(x, y);
    this.tell();
  }

  /// Moves to the next span of a lane, or to the span of another lane at the same time.
  go(by, lanes) {
    if (this.seen.length === 0) return false;
    const from = this.at || {lane: this.seen[0], index: by < 0 ? 0 : -1};
    const row = clamp(this.seen.indexOf(from.lane) + lanes, 0, this.seen.length - 1), lane = this.seen[row];
    const old = from.lane.spans[from.index];
    const index = lanes === 0 ? from.index + by : this.first_after(lane, old ? old.begin : this.view.low);
    this.at = {lane, index: clamp(index, 0, lane.spans.length - 1)};
    const span = lane.spans[this.at.index];
    if (span.begin + span.length < this.view.low || span.begin > this.view.high) {
      const half = (this.view.high - this.view.low) / 2;
      this.view.show([span.begin - half, span.begin + half]);
    }
    const bottom = this.box.scrollTop + this.canvas.clientHeight;
    if (lane.top < this.box.scrollTop + this.axis) this.box.scrollTop = lane.top - this.axis - 8;
    else if (lane.top + lane.height > bottom) this.box.scrollTop += lane.top + lane.height + 8 - bottom;
    this.tell();
    return true;
  }
}

Timeline.shown = [];

/// The schedule as it was planned, below the measured one.
function planned_timeline(run) {
  const line = new Timeline(lanes_of_plan(run.timeline), "planned timeline " + run.name, "planned-plot");
  Timeline.shown.push(line);
  return [make("h3", {text: "As planned"}), make("div", {class: "controls"}, zoom_buttons("planned", () => line.view)), line.readout, line.box];
}

function timeline_section(run) {
  const trace = run.trace && run.trace.ranks.length ? run.trace : null;
  if (!trace && !run.timeline) return null;
  const line = new Timeline(trace ? lanes_of_trace(run, trace) : lanes_of_plan(run.timeline), "timeline " + run.name);
  Timeline.shown = [line];
  const controls = make("div", {class: "controls"}, zoom_buttons("timeline", () => line.view));
  if (trace) {
    const box = make("input", {type: "checkbox", id: "transfers", checked: chosen.transfers});
    box.addEventListener("change", () => {
      chosen.transfers = box.checked;
      line.lay_out();
    });
    controls.append(make("label", {}, box, "Transfers"));
  }
  if (line.steps.length > 1 && line.steps.length <= 12) {
    controls.append(make("span", {class: "buttons", role: "group", "aria-label": "Steps"}, ...line.steps.map((step, i) => make(
      "button", {type: "button", id: "timeline-step-" + i, text: step.name, onclick: () => line.view.show([step.begin, step.begin + step.length])}))));
  }
  const text = trace
    ? "Measured in steps " + trace.first_step + " to " + trace.last_step + ". A rank's rows: the schedule's actions, what these consist of, and its transfers." +
      (trace.left_out ? " " + trace.left_out + " spans did not fit into the page; trace.json has them." : "")
    : "As planned: nothing was traced" + (run.status === "planned" ? "." : " ([job] trace = steps).");
  const used = [...new Set(line.lanes.flatMap(lane => lane.spans.map(span => span.microbatch)))].filter(each => each >= 0).sort((a, b) => a - b);
  const entries = used.slice(0, hues).map(number => [(number === used[0] ? "computing: " : "") + "microbatch " + [number, ...used.filter(each => each > number && each % hues === number % hues)].slice(0, 3).join(", "),
                                                     "fill-" + number % hues]);
  return [
    make("p", {text}), controls, legend([...entries, ...(trace ? [["computing of no microbatch", "op"], ["waiting", "hatched"], ["transfer", "transfer"]] : [])]),
    make("p", {class: "remark", text: "F: forward; B, I, W: backward, with a strip below."}), line.readout, line.box,
    make("p", {class: "remark", text: help_of("\u2190 \u2192 go from span to span, \u2191 \u2193 from row to row")}), details("timeline-numbers", "Numbers", () => line.table()),
    ...(trace && run.timeline ? planned_timeline(run) : []),
  ];
}
