// What every rank kept, sent and did: memory, bytes, times, and who was slow.

const categories = ["parameters", "gradients", "optimizer", "activations", "cache", "communication", "scratch"];
const titles = {compute: "its computing", transfer: "its transfers", input: "its input", stopped: "its process was stopped", link: "its bytes a second"};
/// What was measured of a slow rank, by its cause.
const found_of = {
  compute: "was busy for longer than its peers", input: "was busy for longer than its peers, half of that or more with reading input",
  transfer: "began its transfers later than the others, which waited for it",
  stopped: "was stopped again and again: its process did not run while the others waited",
};

/// If there are more than 16 rows, joins the rows of ranks whose numbers have the same text.
function joined(rows) {
  if (rows.length <= 16 || !rows.every(row => has(row.rank))) return rows;
  const alike = new Map();
  for (const row of rows) {
    const key = JSON.stringify([row.text, ...[...row.parts.map(part => part[1]), row.mark, row.limit].map(value => or_dash(row.show, value))]);
    if (!alike.has(key)) alike.set(key, []);
    alike.get(key).push(row);
  }
  return [...alike.values()].map(same => {
    const all = ranges(same.map(row => row.rank));
    return same.length === 1 ? same[0] : {...same[0], label: all.length < 8 ? "ranks " + all : same.length + " ranks", title: "ranks " + all};
  });
}

/// The bars of all ranks on one scale. `rows`: [{label, rank, parts: [[name, value, variable]], mark, limit, text}].
function bars(all_rows, most) {
  const rows = joined(all_rows);
  const size = value => clamp(100 * value / most, 0, 100) + "%";
  return make("div", {class: "bars" + (rows.length > 16 ? " many" : ""), "aria-hidden": "true"}, ...rows.map(row => {
    const track = make("div", {class: "track"});
    for (const [name, value, variable] of row.parts) {
      if (!value) continue;
      const part = make("div", {class: "part", title: name + " " + row.show(value)});
      part.style.width = size(value);
      part.style.background = "var(--" + variable + ")";
      track.append(part);
    }
    for (const [kind, value] of [["measured", row.mark], ["limit", row.limit]]) {
      if (!has(value) || value > most * 1.001) continue;
      const mark = make("div", {class: kind, title: kind + " " + row.show(value)});
      mark.style.left = size(value);
      track.append(mark);
    }
    return make("div", {class: "row"}, make("span", {class: "label", text: row.label, title: row.title}), track, make("span", {class: "value", text: row.text}));
  }));
}

function place_text(rank) {
  return Object.entries(rank.place || {}).map(([axis, index]) => axis + " " + index).join(", ");
}

/// A rank's name with a mark if it was slow.
const marked_rank = (run, rank) => (slow_of(run).some(each => !is_link(each) && each.rank === rank) ? "\u25b2 " : "") + "rank " + rank;
const rank_label = rank => "rank " + rank.rank;
const category_colours = categories.map((name, i) => [name, "series-" + i]);

// Memory.

const planned_of = rank => rank.planned ? rank.planned.peak : null;

/// The part of a sentence that compares planned and measured memory.
function memory_verdict(run, ranks) {
  if (run.summary && run.summary.steps === 0) return "planned for steps, of which none ran";
  const measured = ranks.filter(rank => has(rank.measured_peak) && rank.planned);
  if (measured.length === 0) return "planned, not measured";
  const off = measured.filter(rank => rank.measured_peak !== rank.planned.peak);
  if (off.length === 0) return "measured as planned on " + (ranks.length === 1 ? "its rank" : (measured.length === ranks.length ? "all " : measured.length + " of ") + plural(ranks.length, "rank"));
  return "measured other than planned on ranks " + ranges(off.map(rank => rank.rank));
}

function memory_section(run) {
  const ranks = (run.ranks || []).filter(rank => rank.planned || has(rank.measured_peak));
  if (ranks.length === 0) return null;
  const limits = ranks.map(rank => rank.memory_limit).filter(has);
  const peaks = ranks.map(rank => Math.max(planned_of(rank) || 0, rank.measured_peak || 0));
  const biggest = Math.max(...peaks), near = limits.filter(limit => limit < 4 * biggest);
  const rows = ranks.map((rank, i) => ({
    label: rank_label(rank), rank: rank.rank, mark: rank.measured_peak, limit: rank.memory_limit, show: shown.bytes, text: shown.bytes(peaks[i]),
    parts: rank.planned ? category_colours.map(([name, variable]) => [name, rank.planned[name], variable]) : [],
  }));
  const used = category_colours.filter(([name]) => ranks.some(rank => rank.planned && rank.planned[name]));
  const text = "Planned by category, up to " + shown.bytes(biggest) + " a rank: " + memory_verdict(run, ranks) + ". " +
    (limits.length ? "A rank has " + shown.bytes(Math.min(...limits)) + (near.length ? "." : ", far beyond these bars.") : "");
  const columns = [...used.map(([name]) => name), ...(ranks.some(rank => rank.planned && rank.planned.snapshot) ? ["snapshot"] : [])];
  return [
    make("p", {text}), legend([...used, ...(ranks.some(rank => has(rank.measured_peak)) ? [["measured peak", "text"]] : []), ...(near.length ? [["limit", "bad"]] : [])]), bars(rows, Math.max(biggest, ...near)),
    details("memory-numbers", "Numbers", () => table(
      "Memory of every rank, in bytes", ["rank", "host", "device", ...columns, "planned peak", "measured peak", "process's own"],
      ranks.map(rank => [rank.rank, rank.host, rank.device, ...columns.map(name => rank.planned && rank.planned[name]), planned_of(rank),
                         rank.measured_peak, rank.private_bytes]), 3)),
  ];
}

// Bytes that ranks sent.

/// Rows of axis and collective with a list of all ranks' bytes.
function traffic_rows(ranks) {
  const rows = new Map();
  const note = (kind, rank, sent) => {
    for (const [axis, collectives] of Object.entries(sent || {})) {
      for (const [collective, value] of Object.entries(collectives)) {
        const key = axis + " " + collective;
        if (!rows.has(key)) rows.set(key, {axis, collective, planned: new Map(), measured: new Map()});
        rows.get(key)[kind].set(rank.rank, value);
      }
    }
  };
  for (const rank of ranks) {
    note("planned", rank, rank.planned_sent);
    note("measured", rank, rank.sent);
  }
  return [...rows.values()];
}

function span_text(map, show) {
  const found = extent([...map.values()]);
  if (!found) return dash;
  const [low, high] = found.map(show);
  return low === high ? low : low + " to " + high;
}

function agreement(row) {
  if (row.planned.size === 0) return dash;
  if (row.measured.size === 0) return "planned, not measured";
  const off = [...row.measured].filter(([rank, value]) => (row.planned.get(rank) || 0) !== value).map(([rank]) => rank);
  return off.length === 0 ? "\u2713 as planned" : "\u2260 on ranks " + ranges(off);
}

function traffic_section(run) {
  const ranks = run.ranks || [], rows = traffic_rows(ranks);
  if (rows.length === 0) return ranks.length === 1 ? [make("p", {text: "One rank: nothing moved between ranks."})] : null;
  const of_rank = rank => rows.map((row, i) => [row.axis + dot + row.collective,
                                                row.measured.get(rank.rank) ?? row.planned.get(rank.rank), "series-" + i % hues]);
  const has_run = rows.some(row => row.measured.size > 0);
  const totals = ranks.map(rank => sum(of_rank(rank).map(part => part[1])));
  return [
    table("Bytes that a rank sends in a step", ["axis" + dot + "collective", "planned", "sent in the last step", ""],
          rows.map(row => [row.axis + dot + row.collective, span_text(row.planned, shown.bytes), span_text(row.measured, shown.bytes), agreement(row)])),
    legend(rows.map((row, i) => [row.axis + dot + row.collective, "series-" + i % hues])),
    bars(ranks.map((rank, i) => ({label: rank_label(rank), rank: rank.rank, parts: of_rank(rank), show: shown.bytes, text: shown.bytes(totals[i])})),
         Math.max(...totals, 1)),
    details("traffic-numbers", "Numbers", () => table(
      has_run ? "Bytes sent in the last step, and by the transports over the whole run" : "Bytes that each rank is planned to send in a step",
      ["rank", ...rows.map(row => row.axis + dot + row.collective), ...(has_run ? ["whole run"] : [])],
      ranks.map(rank => [rank.rank, ...[...of_rank(rank).map(part => part[1]), ...(has_run ? [rank.wire_bytes] : [])].map(value => has(value) ? shown.exact(value) : null)]))),
  ];
}

// Times.

/// Rank 0's steps: how long, and how much of that was communication.
function step_chart(run) {
  const steps = run.steps;
  if (!steps || !steps.comm_exposed_s || !steps.step_s) return null;
  const line = (key, name, hue, style) => ({...points(steps, "step", key), name, hue, style});
  const view = View.of("times " + run.name), ends = extent(steps.step);
  view.charts.clear();
  view.full = ends[0] === ends[1] ? [ends[0], ends[0] + 1] : ends;
  return new Chart({
    id: "times-rank-0", title: "Rank 0, step by step", group: "times " + run.name, show: shown.seconds, show_x: x_axes.step.show,
    x_title: "step", zero: true, outliers: true, marks: marks_of(run, "step"),
    series: [line("step_s", "step", 0, 0), line("comm_exposed_s", "exposed communication", 1, 1),
             line("comm_hidden_s", "hidden communication", 2, 2)].filter(each => each.x.length),
  }).element;
}

/// The list without the first interval, which has the start of the run in it. A list of one interval stays as it is.
const after_first = list => list.length > 1 ? list.slice(1) : list;

const first_step = (times, interval) => times.step[interval] - times.steps[interval] + 1;
const step_range = (from, to) => from === to ? String(from) : from + dash + to;

/// The steps after interval `begin` that belong to no interval, such as "41–60, 135–140", or "". A restart loses the times of the interval that it cuts short.
function steps_without_times(times, begin) {
  return times.step.slice(begin, -1).map((end, i) => [end + 1, first_step(times, begin + i + 1) - 1]).filter(([from, to]) => from <= to)
    .map(([from, to]) => step_range(from, to)).join(", ");
}

/// Seconds a step of every rank, over all intervals after the first.
function mean_times(times) {
  const steps = sum(after_first(times.steps)), ranks = times.seconds.length ? times.seconds[0].length : 0;
  const mean = key => Array.from({length: ranks}, (_, rank) =>
    times[key] ? sum(after_first(times[key]).map(row => row[rank])) / steps : null);
  return Object.fromEntries(["seconds", "computing_s", "exposed_s", "hidden_s", "input_s"].map(key => [key, mean(key)]));
}

const time_parts = [["computing_s", "computing", "series-0"], ["exposed_s", "exposed communication", "series-1"],
                    ["input_s", "input", "series-3"]];

function rank_bars(run) {
  const mean = mean_times(run.rank_times), most = Math.max(...mean.seconds, 1e-12), slow = slow_of(run).filter(each => !is_link(each));
  const rows = mean.seconds.map((seconds, rank) => {
    const parts = time_parts.map(([key, name, variable]) => [name, mean[key][rank], variable]);
    const rest = seconds - sum(parts.map(part => part[1]));
    return {label: marked_rank(run, rank), show: shown.seconds, text: shown.seconds(seconds), parts: [...parts, ["other", Math.max(0, rest), "series-rest"]]};
  });
  const later = run.rank_times.step.length > 1, without = later ? steps_without_times(run.rank_times, 1) : "";
  return [
    make("h3", {text: "Every rank, mean of a step" + (later ? " from step " + first_step(run.rank_times, 1) + " on" : "") + (without ? ", without steps " + without : "")}),
    legend([...time_parts.map(part => [part[1], part[2]]), ["other", "series-rest"]]), bars(rows, most),
    slow.length ? make("p", {class: "remark", text: "\u25b2 A slow rank." + (slow.some(each => each.cause === "transfer")
      ? " That its transfers begin late is not part of its bar: the others' waiting for them is exposed communication." : "")}) : null,
    details("rank-times-numbers", "Numbers", () => table(
      "Mean seconds of a step", ["rank", "step", "computing", "exposed communication", "hidden communication", "input"],
      mean.seconds.map((seconds, rank) => [rank, ...[seconds, mean.computing_s[rank], mean.exposed_s[rank], mean.hidden_s[rank], mean.input_s[rank]].map(six_digits)]), 1)),
  ];
}

const quantities = {
  computing_s: "computing", exposed_s: "exposed communication", hidden_s: "hidden communication", input_s: "input", seconds: "whole step",
};

/// A map of ranks by intervals. The colour is the stronger, the longer a step took. Steps that belong to no interval stay empty.
class HeatMap {
  constructor(run) {
    const times = this.times = run.rank_times;
    this.restarts = marks_of(run, "step").filter(mark => mark.kind === "restart");
    this.at = null;
    this.surface = new Surface({id: "heat-map", tabindex: 0, role: "slider", "aria-roledescription": "map", class: "heat"},
                               (pen, width, height) => this.draw(pen, width, height));
    this.canvas = this.surface.canvas;
    this.ranks = times.seconds[0].length;
    this.names = times.seconds[0].map((_, rank) => marked_rank(run, rank));
    this.before = first_step(times, 0) - 1;
    this.length = last(times.step) - this.before;
    this.canvas.style.height = Math.min(480, 40 + this.ranks * Math.max(6, Math.min(20, 400 / this.ranks))) + "px";
    this.readout = make("p", {class: "readout"});
    for (const kind of ["pointerdown", "pointermove"]) this.canvas.addEventListener(kind, event => this.point(event));
    this.canvas.addEventListener("pointerleave", event => { if (is_gone(event)) this.move(null); });
    this.canvas.addEventListener("keydown", event => this.key(event));
    this.choose(quantities[chosen.quantity] && times[chosen.quantity] ? chosen.quantity : "computing_s");
  }

  choose(quantity) {
    chosen.quantity = this.quantity = quantity;
    const {times} = this;
    this.values = times[quantity].map((row, i) => row.map(value => value / times.steps[i]));
    const sorted = after_first(this.values).flat().sort((a, b) => a - b), most = sorted[Math.floor(0.95 * (sorted.length - 1))];
    this.ends = [0, last(sorted) > 2 * most ? most : last(sorted)];  // from 0, so that small differences look small
    this.beyond = extent(this.values.flat())[1] > this.ends[1];
    this.move(this.at);
  }

  move(cell) {
    this.at = cell && {interval: clamp(cell.interval, 0, this.times.step.length - 1), rank: clamp(cell.rank, 0, this.ranks - 1)};
    const text = this.at
      ? "rank " + this.at.rank + ", steps " + first_step(this.times, this.at.interval) + " to " + this.times.step[this.at.interval] + ": " +
        shown.seconds(this.values[this.at.interval][this.at.rank]) + " a step"
      : "from " + shown.seconds(this.ends[0]) + " (faint) to " + shown.seconds(this.ends[1]) + (this.beyond ? " or more" : "") + " (strong) a step";
    this.readout.textContent = text;
    const values = {"aria-label": quantities[this.quantity] + " of every rank over steps", "aria-valuetext": text, "aria-valuemin": 0,
                    "aria-valuemax": this.times.step.length * this.ranks - 1, "aria-valuenow": this.at ? this.at.interval * this.ranks + this.at.rank : 0};
    for (const [name, value] of Object.entries(values)) this.canvas.setAttribute(name, value);
    this.surface.soon();
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect(), {left, top, wide, tall} = this.box || {};
    if (!wide) return;
    const step = clamp(this.before + Math.ceil((event.clientX - box.left - left) / wide * this.length), this.before + 1, last(this.times.step));
    const interval = lower_bound(this.times.step, step);
    this.move(step < first_step(this.times, interval) ? null : {interval, rank: Math.floor((event.clientY - box.top - top) / tall * this.ranks)});
  }

  key(event) {
    const moves = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]};
    if (!moves[event.key]) return;
    event.preventDefault();
    const [interval, rank] = moves[event.key], from = this.at || {interval: 0, rank: 0};
    this.move(this.at ? {interval: from.interval + interval, rank: from.rank + rank} : from);
  }

  draw(pen, width, height) {
    const left = 68, top = 4, wide = width - left - 8, tall = height - top - 24;
    this.box = {left, top, wide, tall};
    const [low, high] = this.ends, tall_cell = tall / this.ranks, place_x = step => left + (step - this.before) / this.length * wide;
    const ends_of = interval => [place_x(first_step(this.times, interval) - 1), place_x(this.times.step[interval])];
    pen.fillStyle = colour("heat");
    this.values.forEach((row, interval) => row.forEach((value, rank) => {
      const [begin, end] = ends_of(interval), gap = end - begin > 6 && tall_cell > 6 ? 1 : 0;
      pen.globalAlpha = 0.08 + 0.92 * Math.min(1, (value - low) / (high - low || 1));
      pen.fillRect(begin, top + rank * tall_cell, end - begin - gap, tall_cell - gap);
    }));
    pen.globalAlpha = 1;
    pen.fillStyle = colour("bad");
    for (const {x} of this.restarts) if (x > this.before) pen.fillRect(Math.round(place_x(x)) - 1, top, 2, tall);
    if (this.at) {
      pen.strokeStyle = colour("text");
      pen.lineWidth = 2;
      const [begin, end] = ends_of(this.at.interval);
      pen.strokeRect(begin, top + this.at.rank * tall_cell, end - begin, tall_cell);
    }
    pen.fillStyle = colour("soft");
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    const every = Math.ceil(14 / tall_cell);
    for (let rank = 0; rank < this.ranks; rank += every) pen.fillText(this.names[rank], left - 6, top + (rank + 0.5) * tall_cell);
    pen.textBaseline = "top";
    pen.textAlign = "left";
    pen.fillText("step " + (this.before + 1), left, height - 16);
    pen.textAlign = "right";
    pen.fillText(String(last(this.times.step)), left + wide, height - 16);
  }
}

function heat_map(run) {
  const map = new HeatMap(run), without = steps_without_times(run.rank_times, 0);
  const select = make("select", {id: "quantity"}, ...Object.entries(quantities).filter(([key]) => run.rank_times[key])
    .map(([key, text]) => make("option", {value: key, text})));
  select.value = map.quantity;
  select.addEventListener("change", () => map.choose(select.value));
  return [
    make("h3", {text: "Every rank, over the run"}), make("div", {class: "controls"}, make("label", {}, "Seconds of ", select)), map.readout, map.canvas,
    make("p", {class: "remark", text: [map.restarts.length ? "Upright lines: restarts." : "", without ? "Without times, since their interval was cut short: steps " + without + "." : ""].join(" ")}),
    details("heat-numbers", "Numbers", () => table(
      "Seconds a step of every rank, " + quantities[map.quantity], ["steps", ...map.values[0].map((_, rank) => "rank " + rank)],
      map.values.map((row, i) => [step_range(first_step(run.rank_times, i), run.rank_times.step[i]), ...row.map(six_digits)]))),
  ];
}

const predicted_keys = ["compute_s", "exposed_communication_s", "waiting_s"];
const waiting_share = stage => stage.waiting_s / (sum(predicted_keys.map(key => stage[key])) || 1);

/// The stages of a step as they are predicted.
function predicted_bars(run) {
  const stages = run.predicted && run.predicted.stages, keys = predicted_keys;
  if (!stages || stages.length === 0) return [];
  const parts = [["computing", "series-0"], ["exposed communication", "series-1"], ["waiting", "hatched"]];
  const totals = stages.map(stage => sum(keys.map(key => stage[key])));
  return [
    make("h3", {text: "A step as predicted, with its update: " + shown.seconds(Math.max(...totals))}), legend(parts),
    bars(stages.map(stage => ({label: "stage " + stage.stage, show: shown.seconds, text: "waits " + shown.share(waiting_share(stage)),
                                    parts: parts.map((part, number) => [part[0], stage[keys[number]], part[1]])})), Math.max(...totals, 1e-12)),
    details("predicted-numbers", "Numbers", () => table(
      "Predicted seconds of a step", ["stage", "as on rank", "computing", "exposed communication", "waiting", "hidden communication"],
      stages.map(stage => [stage.stage, stage.rank, ...[...keys, "hidden_communication_s"].map(key => six_digits(stage[key]))]))),
  ];
}

function times_section(run) {
  const times = run.rank_times, several = times && times.seconds && times.seconds.length && times.seconds[0].length;
  const parts = [step_chart(run), ...(several ? [...rank_bars(run), ...heat_map(run)] : []), ...predicted_bars(run)].filter(each => each);
  return parts.length ? parts : null;
}

// Who was slow.

const is_link = slow => slow.cause === "link";
const slow_name = slow => is_link(slow) ? "ranks " + slow.rank + " and " + slow.peer : "rank " + slow.rank;

function slow_text(slow) {
  const on = (rank, host) => rank + (host ? " on " + host : "");
  const who = is_link(slow) ? "the link between ranks " + on(slow.rank, slow.host) + " and " + on(slow.peer, slow.peer_host) + " moved " +
      or_dash(shown.bytes, slow.bandwidth) + "/s in place of " + or_dash(shown.bytes, slow.usual_bandwidth) + "/s"
    : "rank " + on(slow.rank, slow.host) + " " + (found_of[slow.cause] || slow.cause);
  return who + ": by " + shown.seconds(slow.behind_s) + " a step (" + shown.share(slow.share) + "), steps " + slow.first_step + " to " + slow.last_step;
}

const slow_of = run => run.slow_ranks || (run.summary && run.summary.slow_ranks) || [];

function slow_section(run) {
  const slow = slow_of(run);
  if (slow.length === 0) return run.rank_times ? [make("p", {text: "No rank held up the others."})] : null;
  return [...slow.map(each => make("p", {text: slow_text(each) + "."})), table("Ranks that held up the others", ["rank", "host", "cause", "first step", "last step", "behind", "share of the step"],
                slow.map(each => [is_link(each) ? each.rank + " and " + each.peer : each.rank, is_link(each) ? [each.host, each.peer_host].filter(host => host).join(", ") : each.host, titles[each.cause] || each.cause, each.first_step, each.last_step,
                                  shown.seconds(each.behind_s) + " a step", shown.share(each.share)]), 3)];
}
