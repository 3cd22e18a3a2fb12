// The page: its sections in their order, what stands first, and how a live page goes on.

const states = {
  finished: ["\u2713", "good"], running: ["\u25b6", "busy"], planned: ["\u25cb", "plain"], stopped: ["\u25a0", "warn"], failed: ["\u2715", "bad"],
};

function status_badge(run) {
  const [glyph, kind] = states[run.status] || ["?", "plain"];
  return make("span", {class: "badge " + kind}, make("span", {"aria-hidden": "true", text: glyph}), " " + run.status);
}

// The first screen.

const latest = (run, column) => {
  const values = (run.steps || {})[column] || [];
  for (let i = values.length - 1; i >= 0; --i) if (has(values[i])) return values[i];
  return null;
};
const result_of = (run, field, column) => run.summary && has(run.summary[field]) ? run.summary[field] : latest(run, column);

function layout_text(run) {
  const ranks = (run.ranks || []).length || (run.mesh ? run.mesh.ranks.length : 1);
  const axes = (run.mesh ? run.mesh.axes : []).filter(axis => axis[1] > 1).map(axis => axis[0] + " " + axis[1]);
  const hosts = [...new Set((run.ranks || []).map(rank => rank.host).filter(has))];
  const devices = [...new Set((run.ranks || []).map(rank => rank.device).filter(has))];
  return plural(ranks, "rank") + (axes.length ? ": " + axes.join(" " + times + " ") : "") +
    (hosts.length ? ", on " + (hosts.length > 4 ? hosts.length + " hosts" : hosts.join(", ")) : "") +
    (devices.length ? " (" + devices.slice(0, 2).join(", ") + (devices.length > 2 ? ", \u2026" : "") + ")" : "");
}

/// A fact of the first screen: its name, what a person reads at once, and a line more.
const tile = (name, value, more, kind) => has(value)
  ? make("div", {class: "tile" + (kind ? " " + kind : "")}, make("dt", {text: name}), make("dd", {}, make("strong", {text: value}), more ? make("span", {text: more}) : null))
  : null;

function result_tile(run) {
  const loss = result_of(run, "loss", "loss"), validation = result_of(run, "val_loss", "val_loss");
  if (has(loss)) return tile("Loss", shown.number(loss), has(validation) ? "validation " + shown.number(validation) : null);
  return has(validation) ? tile("Validation loss", shown.number(validation)) : null;
}

/// The number of steps that the last attempt did or, if there is no summary yet, the number of the latest step.
const steps_done = run => run.summary && has(run.summary.steps) ? run.summary.steps : latest(run, "step");
function seconds_in_steps(run) {
  const {step, time_s} = run.steps || {}, first = (run.summary || {}).first_step || 0;
  if (!time_s || !time_s.length) return null;
  const before = lower_bound(step, first + 1) - 1;
  return last(time_s) - (before >= 0 ? time_s[before] : 0);
}

/// Tokens or samples a second; null for jobs that have neither.
const rate_of = run => result_of(run, "tokens_per_s", "tokens_per_s") || null;

function speed_tile(run) {
  const rate = rate_of(run), predicted = run.predicted || {};
  const median = run.summary && has(run.summary.step_ms_median) ? run.summary.step_ms_median / 1000 : latest(run, "step_s");
  const expected = has(predicted.step_s) ? "predicted " + shown.seconds(predicted.step_s) + " a step" : null;
  if (!has(rate) && !has(median) && has(expected)) {
    const per = predicted.tokens_per_s || predicted.samples_per_s, unit = predicted.tokens_per_s ? "tok" : "samples";
    return per ? tile("Speed", shown.rate(unit)(per), "predicted: " + shown.seconds(predicted.step_s) + " a step")
      : tile("Time of a step", shown.seconds(predicted.step_s), "predicted");
  }
  if (!has(rate) && !has(median)) return null;
  const mean = seconds_in_steps(run) / steps_done(run), is_apart = run.summary && mean > 0 && Math.abs(mean - median) > 0.1 * median;
  const step = !has(median) ? null : !run.summary ? shown.seconds(median) + " a step"
    : "median step " + shown.seconds(median) + (is_apart ? ", mean " + shown.seconds(mean) : "");
  return has(rate) ? tile("Speed", shown.rate(unit_of(run))(rate), [step, expected].filter(has).join("; ")) : tile(run.summary ? "Median step" : "Time of a step", shown.seconds(median), [is_apart ? "mean " + shown.seconds(mean) : null, expected].filter(has).join("; "));
}

const setting_of = (run, section, key) => ((run.job && run.job.settings || []).find(each => each[0] === section && each[1] === key) || [])[2];

/// The last step that a run is to make, if its job says so.
function last_step(run) {
  const steps = Number(setting_of(run, run.task, "steps") || NaN);
  return run.task === "iterate" && setting_of(run, "iterate", "from") ? run.steps.step[0] - 1 + steps : steps;
}

/// Steps of a run that goes on, and the time that is left if they go on as the last ones did.
function running_tile(run) {
  const {step, time_s} = run.steps, done = last(step), end = last_step(run), from = Math.max(0, step.length - 100);
  if (!(end >= done)) return null;
  const left = time_s && done > step[from] ? (last(time_s) - time_s[from]) / (done - step[from]) * (end - done) : null;
  return tile("Steps", shown.exact(done) + " of " + shown.exact(end), [has(time_s) ? "in " + shown.seconds(seconds_in_steps(run)) : null, has(left) ? "about " + shown.seconds(left) + " of steps left" : null].filter(has).join(", "));
}

function steps_tile(run) {
  const running = run.status === "running" && has(latest(run, "step")) ? running_tile(run) : null;
  if (running) return running;
  const done = steps_done(run), within = seconds_in_steps(run), took = run.summary ? run.summary.seconds : within;
  const outside = run.summary && has(within) && took > within * 1.02 ? ", " + shown.seconds(within) + " of it in steps; the rest: start, " + (run.task === "iterate" ? "" : "validation, ") + "saving" : "";
  const step = latest(run, "step"), to = has(step) && step > done ? "to step " + step : null;
  return has(done) ? tile(run.task === "infer" ? "Answers" : "Steps", shown.exact(done), [to, has(took) ? "in " + shown.seconds(took) + outside : null].filter(has).join(", ")) : null;
}

function memory_tile(run) {
  const ranks = (run.ranks || []).filter(rank => rank.planned || has(rank.measured_peak));
  if (ranks.length === 0) return null;
  const peaks = ranks.map(rank => Math.max(planned_of(rank) || 0, rank.measured_peak || 0));
  const most = Math.max(...peaks), limits = ranks.map(rank => rank.memory_limit).filter(has), is_plan = run.status === "planned" && limits.length > 0;
  const over = ranks.filter((rank, i) => has(rank.memory_limit) && peaks[i] > rank.memory_limit);
  if (over.length) {
    const ones = "too much for " + (over.length === 1 ? "rank " : "ranks ") + ranges(over.map(rank => rank.rank));
    return is_plan ? tile("Memory of a rank", "does not fit", "needs up to " + shown.bytes(most) + " and has " + shown.bytes(Math.min(...limits)) + ": " + ones, "bad")
      : tile("Memory of a rank", shown.bytes(most), ones, "bad");
  }
  return is_plan ? tile("Memory of a rank", "fits", "needs at most " + shown.bytes(most) + " and has " + shown.bytes(Math.min(...limits)))
    : tile("Memory of a rank", shown.bytes(most), (limits.length ? "of " + shown.bytes(Math.min(...limits)) + "; " : "") + memory_verdict(run, ranks));
}

function slow_tile(run) {
  const slow = slow_of(run);
  if (slow.length === 0) return run.rank_times ? tile("Slow ranks", "none", "no rank held up the others") : null;
  const worst = slow.reduce((most, each) => each.behind_s > most.behind_s ? each : most);
  return tile(slow.length === 1 ? "Slow " + (is_link(worst) ? "link" : "rank") : "Slowest of " + slow.length + " slow ranks", slow_name(worst),
              (titles[worst.cause] || worst.cause) + ", " + shown.seconds(worst.behind_s) + " a step since step " + worst.first_step, "warn");
}

function restart_tile(run) {
  const attempts = run.attempts || [];
  if (!attempts.length) return null;
  const again = attempts.map((_, i) => repeated_steps(run, i));
  return tile("Restarts", String(attempts.length), again.every(has) ? plural(sum(again), "step") + " done again" : null, "warn");
}

function communication_tile(run) {
  const steps = run.steps || {};
  if (!steps.comm_exposed_s || !steps.step_s) return null;
  const share = sum(after_first(steps.comm_exposed_s)) / sum(after_first(steps.step_s)), is_later = steps.step_s.length > 1;
  return has(share) && isFinite(share) ? tile("Rank 0 waited", shown.share(share), "of the time of its steps " + (is_later ? "after the first " : "") + "it did nothing but wait for communication", share > 0.5 ? "warn" : null) : null;
}

function attempts_table(run) {
  const attempts = run.attempts || [];
  if (attempts.length === 0) return null;
  return table("Attempts that failed, after which the ranks were started again",
               ["attempt", "rank", "cause", "began after step", "ended after step", "next began after step", "steps done again", "ranks", "took"],
               attempts.map((each, i) => [i + 1, each.rank, each.cause, each.first_step, end_of(each), began_after(run, i + 1), repeated_steps(run, i),
                                          Array.isArray(each.ranks) ? each.ranks.length : each.ranks, or_dash(shown.seconds, each.seconds)]), 3);
}

function restart_warnings(run) {
  const attempts = run.attempts || [];
  if (attempts.length === 0) return [];
  const texts = attempts.slice(-3).map((each, i) => {
    const number = attempts.length - Math.min(3, attempts.length) + i, from = began_after(run, number + 1);
    return "\u25b2 Attempt " + (number + 1) + " failed after step " + end_of(each) +
      (has(from) ? "; the next went on after step " + from + " and did " + plural(repeated_steps(run, number), "step") + " again" : "") + ".";
  });
  return [...texts.map(text => make("p", {class: "slow", text})),
          make("p", {class: "soft", text: "Curves and the times of every rank are of all attempts. Speed, steps, seconds, memory, bytes and slow ranks are of the last one alone."})];
}

function bubble_tile(run) {
  const bubble = extent((run.ranks || []).map(rank => rank.bubble));
  if (!bubble || !(bubble[1] > 0)) return null;
  const stages = (run.predicted || {}).stages || [];
  return tile("Bubble of the pipeline", shown.share(bubble[1]), "a stage's idle time over its working time before the update, as planned; " +
    (stages.length ? shown.share(Math.max(...stages.map(waiting_share))) + " of a whole step" : shown.share(bubble[1] / (1 + bubble[1])) + " of all its time"));
}

/// The fields of the summary, one a row, exactly. Those of ranks are in the sections.
function summary_table(summary) {
  const rows = Object.entries(summary).filter(([name]) => !["ranks", "attempts", "slow_ranks"].includes(name)).flatMap(([name, value]) =>
    value && typeof value === "object" && !Array.isArray(value)
      ? Object.entries(value).map(([inner, each]) => [name + "." + inner, each]) : [[name, Array.isArray(value) ? value.join(" ") : value]]);
  return table("summary.json", ["field", "value"], rows.map(([name, value]) => [name, has(value) ? String(value) : dash]), 2);
}

function overview_section(run) {
  const summary = run.summary || {}, parameters = summary.parameters ?? run.parameters;
  const facts = [run.task, parameters ? shown.count(parameters) + " parameters" : null, layout_text(run)].filter(has).join(dot);
  const when = summary.started ? "Started " + shown_time(summary.started) + ", ended " + shown_time(summary.ended) + (summary.host ? " on " + summary.host : "") + "." : null;
  const error = run.error || summary.error;
  return [
    make("p", {class: "headline"}, status_badge(run), make("span", {text: run.name}), make("span", {class: "soft", text: facts})),
    error ? make("p", {class: "error", text: error}) : null,
    make("dl", {class: "tiles"}, ...[result_tile, speed_tile, steps_tile, memory_tile, communication_tile, bubble_tile, slow_tile, restart_tile].map(each => each(run)).filter(each => each)),
    ...slow_of(run).slice(0, 3).map(slow => make("p", {class: "slow", text: "\u25b2 " + slow_text(slow) + "."})),
    ...restart_warnings(run),
    when ? make("p", {class: "soft", text: when}) : null,
    attempts_table(run),
    run.summary ? details("summary-numbers", "Numbers of the summary", () => summary_table(run.summary)) : null,
  ];
}

// Several runs.

const result_rows = [
  ["status", run => run.status], ["ranks", run => (run.ranks || []).length || null], ["steps", run => result_of(run, "steps", "step")],
  ["loss", run => or_dash(shown.number, result_of(run, "loss", "loss"))],
  ["validation loss", run => or_dash(shown.number, result_of(run, "val_loss", "val_loss"))],
  ["speed", run => or_dash(shown.rate(unit_of(run)), rate_of(run))],
  ["median step", run => or_dash(value => shown.seconds(value / 1000), (run.summary || {}).step_ms_median)],
  ["took", run => or_dash(shown.seconds, (run.summary || {}).seconds)],
  ["peak memory of a rank", run => {
    const ranks = run.ranks || [], measured = extent(ranks.map(rank => rank.measured_peak)), planned = extent(ranks.map(planned_of));
    return measured ? shown.bytes(measured[1]) : planned ? shown.bytes(planned[1]) + " planned" : dash;
  }],
  ["slow ranks", run => ranges(slow_of(run).filter(slow => !is_link(slow)).map(slow => slow.rank)) || "none"],
  ["slow links", run => slow_of(run).filter(is_link).map(slow => slow.rank + dash + slow.peer).join(", ") || null], ["restarts", run => (run.attempts || []).length],
];

function compared_section(run, runs) {
  if (runs.length < 2) return null;
  const names = runs.map(each => each.name), jobs = runs.map(each => new Map((each.job && each.job.settings || []).map(([section, key, value]) => [section + "." + key, value])));
  const keys = [...new Set(jobs.flatMap(job => [...job.keys()]))].filter(key => key !== "job.output" && new Set(jobs.map(job => job.get(key))).size > 1);
  return [
    table("Results", ["", ...names], result_rows.map(([name, value]) => [name, ...runs.map(value)]).filter(row => row.slice(1).some(has))),
    keys.length ? table("What differs in the jobs", ["setting", ...names], keys.map(key => [key, ...jobs.map(job => job.get(key) ?? "default")]))
      : make("p", {text: "The jobs have the same settings."}),
  ];
}

// The rest.

/// The frames of a GIF, each as a picture of its own, and the milliseconds that each is shown. Every frame is whole and has the file's colours.
function frames_of(data) {
  const gif = atob(data.slice(data.indexOf(",") + 1)), byte = place => gif.charCodeAt(place), frames = [];
  const head = 13 + (byte(10) & 128 ? 3 << (byte(10) & 7) + 1 : 0);  // with the table of colours
  let began = head, place = head, milliseconds = 100;
  while (byte(place) === 0x21 || byte(place) === 0x2c) {
    const is_image = byte(place) === 0x2c;
    if (byte(place + 1) === 0xf9) milliseconds = 10 * (byte(place + 4) + 256 * byte(place + 5)) || milliseconds;
    place += is_image ? 11 : 2;
    while (byte(place)) place += byte(place) + 1;  // blocks, each after its length; 0 ends them
    ++place;
    if (!is_image) continue;
    frames.push("data:image/gif;base64," + btoa(gif.slice(0, head) + gif.slice(began, place) + ";"));
    began = place;
  }
  return {frames, milliseconds};
}

/// An animation that can be stopped at every frame.
function animation(picture) {
  const {frames, milliseconds} = frames_of(picture.data), image = make("img", {src: frames[0] || picture.data, alt: picture.title});
  if (frames.length < 2) return [image];
  const button = make("button", {type: "button"}), slider = make("input", {type: "range", min: 0, max: frames.length - 1, value: 0, "aria-label": "Frame"});
  let timer = null;
  const show = frame => {
    image.src = frames[frame];
    slider.value = frame;
  };
  const play = is_playing => {
    clearInterval(timer);
    timer = is_playing ? setInterval(() => image.isConnected ? show((Number(slider.value) + 1) % frames.length) : play(false), milliseconds) : null;
    button.textContent = is_playing ? "Stop" : "Play";
  };
  button.addEventListener("click", () => play(timer === null));
  slider.addEventListener("input", () => {
    play(false);
    show(Number(slider.value));
  });
  play(!matchMedia("(prefers-reduced-motion: reduce)").matches);
  return [image, make("span", {class: "controls"}, button, slider)];
}

function pictures_section(run) {
  const pictures = (run.pictures || []).filter(picture => /^data:image\/(png|gif);base64,/.test(picture.data));
  if (pictures.length === 0) return null;
  return [make("div", {class: "pictures"}, ...pictures.map(picture => {
    const text = picture.title || picture.field + (has(picture.step) ? ", step " + picture.step : "");
    const is_animation = picture.data.startsWith("data:image/gif"), shown_as = is_animation ? animation({...picture, title: text}) : [make("img", {src: picture.data, alt: text})];
    return make("figure", {}, ...shown_as, make("figcaption", {text: text + (is_animation ? ". Its scale spans the values of all its steps." : ". Its scale spans the values of this step alone.")}));
  }))];
}

function job_section(run) {
  return run.job && run.job.text ? [scroll_box("pre", "Job file", run.job.text)] : null;
}

function notes_section(run) {
  return run.notes && run.notes.length ? [make("ul", {}, ...run.notes.map(text => make("li", {text})))] : null;
}

/// Each section: its identifier, its title, the function that makes its content or null, and the text that stands in place of null.
const sections = [
  ["overview", "Result", overview_section],
  ["compared", "Runs compared", compared_section],
  ["notes", "Notes", notes_section],
  ["pictures", "Pictures", pictures_section],
  ["curves", "Curves", curves_section, "The run has no steps."],
  ["slow", "Slow ranks", slow_section],
  ["times", "Computing and communication", times_section, "Times of ranks are kept of the steps of more than one rank; this run has none."],
  ["memory", "Memory", memory_section, "Neither planned nor measured memory is known."],
  ["traffic", "Bytes between ranks", traffic_section],
  ["timeline", "Timeline", timeline_section, "Nothing was traced. [job] trace = steps records some steps."],
  ["mesh", "Mesh and shards", mesh_section],
  ["job", "Job", job_section],
];
const about_all = ["compared", "curves"];

// Building.

let shown_document = null;
const made_sections = new Map();  // by identifier
const field_texts = new WeakMap();  // by run, and in it by field

function build_section([id, title, build, instead], run, runs) {
  const content = build(run, runs);
  if (!content && (!instead || run.status === "planned")) return null;
  const name = runs.length > 1 && !about_all.includes(id) && id !== "overview" ? title + ": " + run.name : title;
  return make("section", {id, "aria-labelledby": id + "-title"}, make("h2", {id: id + "-title", text: name}),
              ...(content || [make("p", {class: "soft", text: instead})]).filter(each => each));
}

function field_text(run, field) {
  if (!field_texts.has(run)) field_texts.set(run, new Map());
  const texts = field_texts.get(run);
  if (!texts.has(field)) texts.set(field, JSON.stringify(run[field]));
  return texts.get(field);
}

/// The element of a section. It is made anew only if a field has changed that the section has read, when it was made or later.
function section_of(section, runs) {
  const before = made_sections.get(section[0]);
  const is_same = (run, number) => [...before.read[number]].every(field => field_text(run, field) === field_text(before.runs[number], field));
  if (before && before.chosen === chosen.run && before.runs.length === runs.length && runs.every(is_same)) return before.element;
  const made = {chosen: chosen.run, runs, read: runs.map(() => new Set())};
  const noting = runs.map((run, number) => new Proxy(run, {get: (fields, field) => {
    made.read[number].add(field);
    return fields[field];
  }}));
  made.element = build_section(section, noting[chosen.run], noting);
  made_sections.set(section[0], made);
  return made.element;
}

/// Shows the sections, and replaces only those that were made anew.
function show_sections(made) {
  const old = [...at("main").children];
  if (old.length === made.length && old.every((each, i) => each.id === made[i].id)) {
    made.forEach((each, i) => { if (each !== old[i]) old[i].replaceWith(each); });
    return;
  }
  at("main").replaceChildren(...made);
  at("contents").replaceChildren(...made.map(each => make("a", {href: "#" + each.id, text: sections.find(section => section[0] === each.id)[1]})));
}

/// Makes the sections whose data changed, and leaves the others as they are.
function render(told) {
  const began = performance.now(), {runs} = told;
  chosen.run = clamp(chosen.run, 0, Math.max(0, runs.length - 1));
  const focused = document.activeElement ? document.activeElement.id : "";
  if (runs.length === 0) {
    at("main").replaceChildren(make("p", {text: "There is no run."}));
    return;
  }
  show_sections(sections.map(section => section_of(section, runs)).filter(each => each));
  if (focused && document.activeElement.id !== focused && at(focused)) at(focused).focus({preventScroll: true});
  shown_document = told;
  Surface.draw_new();
  document.documentElement.dataset.drawn = (performance.now() - began).toFixed(1);
}

function choose_run(runs) {
  const select = at("run");
  at("choice").hidden = runs.length < 2;
  if (select.length !== runs.length) select.replaceChildren(...runs.map((run, i) => make("option", {value: i, text: run.name})));
  select.value = chosen.run;
}

function show_document(told) {
  at("made").textContent = "shardrun " + told.version + dot + shown_time(told.made);
  at("heading").textContent = told.runs.length === 1 ? told.runs[0].name : plural(told.runs.length, "run");
  choose_run(told.runs);
  render(told);
}

// Light, dark, paper.

let scheme = null;
const prefers_dark = matchMedia("(prefers-color-scheme: dark)");

function set_theme() {
  const dark = scheme ? scheme === "dark" : prefers_dark.matches;
  document.documentElement.dataset.theme = dark && !document.documentElement.dataset.print ? "dark" : "light";
  at("theme").setAttribute("aria-pressed", String(dark));
  Surface.draw_everything();
}

/// On paper all details are open, colours are light, and drawings are as wide as the paper.
function print_begins() {
  document.documentElement.dataset.print = "yes";
  for (const each of document.querySelectorAll("details")) {
    each.dataset.was = each.open;
    each.fill();
    each.open = true;
  }
  for (const line of Timeline.shown) line.fit();
  set_theme();
}

function print_ends() {
  delete document.documentElement.dataset.print;
  for (const each of document.querySelectorAll("details")) each.open = each.dataset.was === "true";
  for (const line of Timeline.shown) line.fit();
  set_theme();
}

// A run that goes on.

const is_over = told => told.runs.every(run => run.status !== "running" && run.status !== "unknown");
let pressed = false;

function say_live(text, kind) {
  const place = at("live");
  if (place.textContent !== text) place.textContent = text;
  place.className = kind;
}

async function ask_again() {
  try {
    const response = await fetch("document.json", {cache: "no-store"});
    if (!response.ok) throw new Error(await response.text());
    const told = await response.json();
    if (!pressed) show_document(told);
    if (is_over(told)) return say_live("The run has ended.", "over");
    say_live("Live", "busy");
  } catch (error) {
    say_live((error instanceof TypeError ? "No answer" : error.message.trim()) + ": what is shown is of " + shown_time(shown_document.made) + ".", "gone");
  }
  setTimeout(ask_again, 2000);
}

function begin() {
  const told = JSON.parse(at("document").textContent);
  set_theme();
  show_document(told);
  at("run").addEventListener("change", () => {
    chosen.run = Number(at("run").value);
    render(shown_document);
  });
  at("theme").addEventListener("click", () => {
    scheme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    set_theme();
  });
  prefers_dark.addEventListener("change", set_theme);
  addEventListener("beforeprint", print_begins);
  addEventListener("afterprint", print_ends);
  addEventListener("pointerdown", () => { pressed = true; });
  for (const kind of ["pointerup", "pointercancel"]) addEventListener(kind, () => { pressed = false; });
  if (told.live) ask_again();
}

begin();
