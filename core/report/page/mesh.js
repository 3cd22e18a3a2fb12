// The mesh of ranks, and which rank has which part of a tensor.

/// A rank's colour. Its number stands beside it.
function rank_colour(rank) {
  const round = Math.floor(rank / hues);
  return "oklch(" + (0.84 - 0.07 * (round % 3)) + " 0.1 " + (rank * 45 + round * 17) % 360 + ")";
}

function mesh_cell(rank, ranks) {
  const found = ranks.find(each => each.rank === rank);
  const cell = make("td", {class: "rank"}, make("b", {text: String(rank)}));
  if (found && found.host) cell.append(make("span", {text: found.host}));
  cell.style.background = rank_colour(rank);
  return cell;
}

/// Tables of the grid: the last axis to the right, the one before it downwards, a table for each place along the others.
function mesh_tables(mesh, ranks) {
  const axes = mesh.axes.filter(axis => axis[1] > 1), columns = axes.length ? last(axes) : ["ranks", 1];
  const rows = axes.length > 1 ? axes[axes.length - 2] : null, outer = axes.slice(0, -2);
  const count = columns[1] * (rows ? rows[1] : 1), tables = [];
  for (let first = 0; first < mesh.ranks.length; first += count) {
    let block = first / count;
    const places = outer.map(axis => axis).reverse().map(([name, size]) => {
      const place = name + " " + block % size;
      block = Math.floor(block / size);
      return place;
    }).reverse();
    const head = make("tr", {}, rows ? make("td") : null,
                      ...Array.from({length: columns[1]}, (_, i) => make("th", {scope: "col", text: columns[0] + " " + i})));
    const body = Array.from({length: rows ? rows[1] : 1}, (_, row) =>
      make("tr", {}, rows ? make("th", {scope: "row", text: rows[0] + " " + row}) : null,
           ...mesh.ranks.slice(first + row * columns[1], first + (row + 1) * columns[1]).map(rank => mesh_cell(rank, ranks))));
    tables.push(scroll_box("div", "Mesh " + places.join(", "),
                           make("table", {class: "mesh"}, make("caption", {text: places.join(", ") || "mesh"}), make("thead", {}, head),
                                make("tbody", {}, ...body))));
  }
  return make("div", {class: "grid"}, ...tables);
}

const in_svg = (tag, properties, ...children) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(properties)) made.setAttribute(name, value);
  made.append(...children);
  return made;
};

/// The two dimensions of a tensor that are drawn: those that are split first, in their order.
function drawn_dimensions(tensor) {
  const all = tensor.shape.map((_, dimension) => dimension);
  const split = all.filter(d => tensor.shards.some(shard => shard.ranges[d][1] - shard.ranges[d][0] < tensor.shape[d]));
  const others = all.filter(d => !split.includes(d)).sort((a, b) => tensor.shape[b] - tensor.shape[a]);
  return {split, drawn: [...split, ...others].slice(0, 2).sort((a, b) => a - b)};
}

function draw_tensor(tensor, drawn) {
  const [rows, columns] = drawn.length > 1 ? drawn : [null, drawn[0]];
  const size = dimension => has(dimension) ? tensor.shape[dimension] : 1;
  const slope = size(rows) / size(columns), width = slope > 1 ? clamp(360 / slope, 120, 360) : 360;
  const height = slope > 1 ? 360 : clamp(360 * slope, rows === null ? 44 : 60, 360), boxes = [];
  for (const shard of tensor.shards) {
    const of = (dimension, length) => has(dimension) ? shard.ranges[dimension].map(value => value / tensor.shape[dimension] * length) : [0, length];
    const [left, right] = of(columns, width);
    let [top, bottom] = of(rows, height);
    if (shard.run) {
      const elements = shard.ranges.reduce((product, range) => product * (range[1] - range[0]), 1), tall = bottom - top;
      [top, bottom] = shard.run.map(element => top + element / elements * tall);
    }
    const all = ranges(shard.ranks), text = 7 * all.length + 6 < right - left ? all : plural(shard.ranks.length, "rank"), box = in_svg("rect", {x: left, y: top, width: right - left, height: bottom - top, class: "shard"});
    box.style.fill = rank_colour(shard.ranks[0]);
    boxes.push(box);
    if (right - left > 7 * text.length + 6 && bottom - top > 14) {
      boxes.push(in_svg("text", {x: (left + right) / 2, y: (top + bottom) / 2, class: "shard-text"}, text));
    }
  }
  return in_svg("svg", {viewBox: "-1 -1 " + (width + 2) + " " + (height + 2), width: width + 2, height: height + 2, role: "img", class: "tensor",
                        "aria-label": "Parts of " + tensor.name + ", with the numbers of their ranks; the table has them, too"}, ...boxes);
}

/// The indices from range[0] on, without range[1].
const range_text = range => range[1] - range[0] === 1 ? String(range[0]) : range[1] <= range[0] ? "none" : range[0] + dash + (range[1] - 1);

function tensor_view(tensor) {
  const {split, drawn} = drawn_dimensions(tensor), left = tensor.shape.map((_, d) => d).filter(d => !drawn.includes(d)), parts = [];
  parts.push(make("h3", {text: tensor.name}),
             make("p", {text: tensor.kind + ", " + tensor.type + " [" + tensor.shape.join(" " + times + " ") + "]" + (tensor.count > 1 ? ", " + tensor.count + " alike" : "") + (tensor.placement ? ", placed " + tensor.placement : "")}));
  const figure = tensor.shape.length && tensor.shards.every(shard => shard.ranges) ? draw_tensor(tensor, drawn) : null;
  if (left.length && figure) {
    const over = split.filter(d => left.includes(d));
    parts.push(make("p", {class: "remark", text: "Drawn: dimensions " + drawn.join(" and ") + ". " + (over.length
      ? "Dimension " + over.join(", ") + " is split, too: parts lie above each other." : "Each part has the others whole.")}));
  }
  const runs = tensor.shards.some(shard => shard.run);
  if (runs && figure) parts.push(make("p", {class: "remark", text: "Ranks have runs of elements, row by row. They are drawn as bands of their size."}));
  const rows = tensor.shards.map(shard => [ranges(shard.ranks), ...shard.ranges.map(range_text),
                                           ...(runs ? [shard.run ? range_text(shard.run) : null] : [])]);
  parts.push(make("div", {class: "beside"}, figure, table(
    tensor.shards.length === 1 && tensor.shards[0].ranks.length > 1 ? "Each of these ranks has a replica of the whole" : "Parts; ranks in one row hold replicas",
    ["ranks", ...tensor.shape.map((_, d) => "dimension " + d), ...(runs ? ["elements of these"] : [])], rows)));
  return parts;
}

function tensor_browser(tensors) {
  const into = make("div", {class: "tensor-view", "aria-live": "polite"}), filter = make("input", {type: "search", id: "filter", value: chosen.filter});
  const select = make("select", {id: "tensor", size: 8}), count = make("span", {class: "remark", role: "status"});
  const draw = () => {
    const tensor = tensors.find(each => each.name === chosen.tensor);
    into.replaceChildren(...(tensor ? tensor_view(tensor) : []));
  };
  const list = () => {
    const found = tensors.filter(each => each.name.toLowerCase().includes(chosen.filter.toLowerCase()));
    select.replaceChildren(...found.map(each => make("option", {value: each.name, text: each.name})));
    count.textContent = found.length + " of " + tensors.length;
    if (!found.some(each => each.name === chosen.tensor)) chosen.tensor = found.length ? found[0].name : null;
    if (chosen.tensor) select.value = chosen.tensor;
    draw();
  };
  filter.addEventListener("input", () => {
    chosen.filter = filter.value;
    list();
  });
  select.addEventListener("change", () => {
    chosen.tensor = select.value;
    draw();
  });
  list();
  return [make("h3", {text: "Tensors"}),
          make("div", {class: "browser"}, make("div", {class: "picker"}, make("label", {for: "filter", text: "Names that contain"}), filter, count,
                                               make("label", {for: "tensor", text: "Tensor"}), select), into)];
}

function mesh_section(run) {
  const parts = [], mesh = run.mesh;
  if (mesh && mesh.ranks && mesh.ranks.length > 1) {
    parts.push(make("p", {text: mesh.axes.map(([name, size]) => name + " " + size).join(" " + times + " ")}), mesh_tables(mesh, run.ranks || []));
  }
  if (run.tensors && run.tensors.length) parts.push(...tensor_browser(run.tensors));
  return parts.length ? parts : null;
}
