// Curves of a run's steps, of all runs in the same charts.

const x_axes = {
  step: {column: "step", title: "step", show: value => String(Math.round(value * 100) / 100)},
  tokens: {column: "tokens", title: "tokens", show: shown.count},
  time: {column: "time_s", title: "time in steps", show: shown.seconds,
         note: "Time in steps is shorter than the run: its start, its restarts and what it does between steps, such as validation and saving, are left out."},
};

const unit_of = run => run.unit === "samples" ? "samples" : "tok";

/// The charts. Each draws a column of the steps; `show` makes text of its numbers.
const curves = [
  {key: "loss", title: "Loss", show: shown.number, wide: true, smooth: true},
  {key: "tokens_per_s", title: "Speed", show: (value, run) => shown.rate(unit_of(run))(value), show_y: shown.count, smooth: true},
  {key: "step_s", title: "Time of a step", show: shown.seconds, smooth: true, outliers: true},
  {key: "grad_norm", title: "Gradient norm", show: shown.number, smooth: true, outliers: true},
  {key: "lr", title: "Learning rate", show: shown.number},
  {key: "flops_per_s", title: "Arithmetic of rank 0", show: shown.rate("FLOP"), show_y: shown.count, smooth: true},
  {key: "utilisation", title: "Utilisation of rank 0", show: shown.share, smooth: true},
];

/// The points of two columns in which both have a number.
function points(steps, x_column, y_column) {
  const x = [], y = [], xs = steps[x_column] || steps.step || [], ys = steps[y_column] || [];
  for (let i = 0; i < ys.length; ++i) {
    if (!has(ys[i]) || !has(xs[i])) continue;
    x.push(xs[i]);
    y.push(ys[i]);
  }
  return {x, y};
}

/// The place of a step on another axis.
function place_of_step(run, step, axis) {
  if (axis === "step") return step;
  const index = lower_bound(run.steps.step, step);
  return (run.steps[x_axes[axis].column] || [])[Math.min(index, run.steps.step.length - 1)];
}

// Attempts, the last of which is not in `run.attempts`.

const end_of = attempt => (attempt.first_step || 0) + (attempt.steps || 0);
/// The step after which an attempt began, if it is known.
const began_after = (run, number) => (run.attempts[number] || run.summary || {}).first_step;
function repeated_steps(run, number) {
  const from = began_after(run, number + 1);
  return has(from) ? Math.max(0, end_of(run.attempts[number]) - from) : null;
}

/// The marks of a run: its restarts, after which lines show the next attempt, and its checkpoints.
function marks_of(run, axis) {
  const steps = [];
  (run.attempts || []).forEach((attempt, i) => steps.push({step: began_after(run, i + 1) ?? end_of(attempt), kind: "restart"}));
  for (const step of run.checkpoints || []) steps.push({step, kind: "checkpoint"});
  return steps.map(mark => ({x: place_of_step(run, mark.step, axis), kind: mark.kind})).filter(mark => has(mark.x));
}

function series_of(runs, curve, axis) {
  const several = runs.length > 1, list = [];
  runs.forEach((run, number) => {
    if (!run.steps || chosen.hidden.has(run.name)) return;
    const line = (column, more) => {
      const found = points(run.steps, x_axes[axis].column, column);
      if (found.x.length) list.push({...found, ...more});
    };
    line(curve.key, {name: several ? run.name : curve.title.toLowerCase(), hue: several ? number : 0, style: Math.floor(number / hues)});
    if (curve.key === "loss") {
      line("val_loss", {name: several ? run.name + ", validation" : "validation", hue: several ? number : 1, points: true});
    }
  });
  return list;
}

function chart_of(runs, curve) {
  const axis = chosen.x, series = series_of(runs, curve, axis);
  if (series.length === 0) return null;
  const chart = new Chart({
    id: "curve-" + curve.key, title: curve.title, series, group: "curves " + axis,
    marks: runs.length === 1 ? marks_of(runs[0], axis) : [],
    show: value => curve.show(value, runs[0]), show_y: curve.show_y, outliers: curve.outliers, show_x: x_axes[axis].show, x_title: x_axes[axis].title,
    smooth: curve.smooth ? chosen.smooth : 0, logarithmic: chosen.logarithmic,
  });
  chart.element.classList.toggle("wide", curve.wide === true);
  return chart.element;
}

function draw_charts(runs, into) {
  const axis = chosen.x, view = View.of("curves " + axis);
  view.charts.clear();
  const ends = runs.filter(run => run.steps).map(run => extent(run.steps[x_axes[axis].column] || run.steps.step || []));
  const all = ends.filter(each => each);
  if (all.length) view.full = [Math.min(...all.map(each => each[0])), Math.max(...all.map(each => each[1]))];
  if (view.full[0] === view.full[1]) ++view.full[1];
  const charts = curves.map(curve => chart_of(runs, curve)).filter(each => each);
  into.replaceChildren(...(charts.length ? charts : [make("p", {class: "soft", text: "All runs are switched off."})]));
}

function run_switches(runs, redraw) {
  const switches = runs.map((run, number) => {
    const box = make("input", {type: "checkbox", id: "switch-" + number, checked: !chosen.hidden.has(run.name)});
    box.addEventListener("change", () => {
      if (box.checked) chosen.hidden.delete(run.name);
      else chosen.hidden.add(run.name);
      redraw();
    });
    return make("label", {}, box, line_key({hue: number, style: Math.floor(number / hues)}), run.name);
  });
  return make("fieldset", {class: "switches"}, make("legend", {text: "Runs"}), ...switches);
}

function axis_select(runs, redraw) {
  const choices = Object.keys(x_axes).filter(axis => runs.some(run => run.steps && run.steps[x_axes[axis].column]));
  if (!choices.includes(chosen.x)) chosen.x = "step";
  const select = make("select", {id: "x-axis"}, ...choices.map(axis => make("option", {value: axis, text: x_axes[axis].title})));
  select.value = chosen.x;
  select.addEventListener("change", () => {
    chosen.x = select.value;
    redraw();
  });
  return select;
}

function curve_controls(runs, redraw) {
  const slider = make("input", {type: "range", id: "smooth", min: 0, max: 0.99, step: 0.01, value: chosen.smooth});
  const weight = make("output", {for: "smooth", text: chosen.smooth.toFixed(2)});
  slider.addEventListener("input", () => {
    chosen.smooth = Number(slider.value);
    weight.textContent = chosen.smooth.toFixed(2);
    redraw();
  });
  const scale = make("input", {type: "checkbox", id: "logarithmic", checked: chosen.logarithmic});
  scale.addEventListener("change", () => {
    chosen.logarithmic = scale.checked;
    redraw();
  });
  const view = () => View.of("curves " + chosen.x);
  return make("div", {class: "controls"},
              make("label", {}, "Over ", axis_select(runs, redraw)), make("label", {}, "Smoothing ", slider, weight),
              make("label", {}, scale, "Logarithmic"), zoom_buttons("curves", view));
}

/// Buttons that do what keys and the mouse do.
function zoom_buttons(id, view) {
  return make("span", {class: "buttons", role: "group", "aria-label": "Zoom"},
              make("button", {type: "button", id: id + "-in", text: "+", "aria-label": "Zoom in", onclick: () => view().zoom(1.5)}),
              make("button", {type: "button", id: id + "-out", text: "\u2212", "aria-label": "Zoom out", onclick: () => view().zoom(1 / 1.5)}),
              make("button", {type: "button", id: id + "-all", text: "All", "aria-label": "Show all", onclick: () => view().show(null)}));
}

const help_of = moves => "Point or tap for values. Drag to zoom, or hold Ctrl and turn the wheel; double-click for all. Keys: " + moves + ", " +
  "Shift\u2190 Shift\u2192 the part that is shown, + \u2212 zoom, 0 shows all.";

function curves_section(run, runs) {
  if (!runs.some(each => each.steps && (each.steps.step || []).length)) return null;
  const into = make("div", {class: "charts"}), note = make("p", {class: "remark"}), parts = [];
  const redraw = () => {
    draw_charts(runs, into);
    note.textContent = x_axes[chosen.x].note || "";
  };
  if (runs.length > 1) parts.push(run_switches(runs, redraw));
  parts.push(curve_controls(runs, redraw), into, note, make("p", {class: "remark", text: help_of("\u2190 \u2192 move the cursor")}));
  for (const each of runs) {
    if (each.kept_every > 1) {
      parts.push(make("p", {class: "remark", text: each.name + " has many steps: every " + each.kept_every + "th is drawn."}));
    }
  }
  const marks = runs.length > 1 ? [] : [(run.attempts || []).length ? "Solid upright lines: restarts; right of one is the next attempt." : "",
                                        (run.checkpoints || []).length ? "Dotted upright lines: checkpoints that are still there." : ""].filter(text => text);
  if (marks.length) parts.push(make("p", {class: "remark", text: marks.join(" ")}));
  redraw();
  return parts;
}
