#include "tests/fuzz/runs/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tests/support/npy.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/text_job.h"

namespace shardrun::test {
namespace {

/// SplitMix64 (Steele, Lea & Flood 2014): the same numbers with every standard library.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    state_ += 0x9e37'79b9'7f4a'7c15;
    std::uint64_t x = state_;
    x = (x ^ (x >> 30U)) * 0xbf58'476d'1ce4'e5b9;
    x = (x ^ (x >> 27U)) * 0x94d0'49bb'1331'11eb;
    return x ^ (x >> 31U);
  }
  /// From `least` to `most`.
  std::int64_t number(std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(most - least + 1));
  }
  bool chance(int percent) { return number(1, 100) <= percent; }
  template <typename Value>
  const Value& one_of(const std::vector<Value>& values) {
    return values[static_cast<std::size_t>(number(0, static_cast<std::int64_t>(values.size()) - 1))];
  }

 private:
  std::uint64_t state_;
};

const char* text_of(bool value) { return value ? "true" : "false"; }

/// The facts about the model on which the choice of a split depends.
struct Model {
  std::string name;
  std::int64_t layers = 0;
};

class Generator {
 public:
  Generator(std::uint64_t seed, const std::vector<std::string>& transports)
      : random_(seed), types_(~seed), transports_(transports) {}

  RandomJob make(std::uint64_t seed) {
    what("job.output", "run");
    what("job.seed", std::to_string(seed % 1000));
    what("job.threads", random_.chance(75) ? "1" : "2");
    if (random_.chance(12)) {
      iteration();
    } else {
      training();
    }
    return std::move(job_);
  }

 private:
  void what(std::string name, std::string value) { job_.what.push_back({std::move(name), std::move(value)}); }
  void how(std::string name, std::string value) { job_.how.push_back({std::move(name), std::move(value)}); }
  void how_maybe(int percent, std::string name, std::string value) {
    if (random_.chance(percent)) {
      how(std::move(name), std::move(value));
    }
  }

  void iteration() {
    what("job.task", "iterate");
    const std::string model = random_.one_of<std::string>({"heat1d", "heat2d", "sin"});
    what("model.name", model);
    if (model == "heat2d") {
      what("model.rows", std::to_string(random_.number(1, 20)));
      what("model.columns", std::to_string(random_.number(1, 20)));
    } else {
      what("model.cells", std::to_string(random_.number(1, 60)));
    }
    if (model != "sin") {
      what("model.boundary", random_.one_of<std::string>({"periodic", "fixed"}));
    }
    what("iterate.steps", std::to_string(random_.number(0, 9)));
    if (random_.chance(30)) {
      what("iterate.save_every", std::to_string(random_.number(1, 4)));
    }
    split_named(model == "heat2d" ? std::vector<std::string>{"x", "y"} : std::vector<std::string>{"x"});
  }

  void training() {
    const Model model = random_.chance(75) ? transformer() : perceptron();
    batches();
    optimizer();
    split(model);
    if (types_.chance(25)) {
      what("train.precision", "mixed");
      what("train.gradients", types_.one_of<std::string>({"float32", "bfloat16"}));
    }
  }

  Model transformer() {
    const std::int64_t heads = random_.number(1, 4);
    const std::int64_t layers = random_.number(1, 4);
    const std::int64_t context = random_.number(2, 10);
    what("model.name", "gpt");
    what("model.layers", std::to_string(layers));
    what("model.heads", std::to_string(heads));
    what("model.width", std::to_string(heads * random_.number(1, 6)));
    what("model.context", std::to_string(context));
    what("model.bias", text_of(random_.chance(50)));
    what("model.tied", text_of(random_.chance(50)));
    what("model.gelu", random_.one_of<std::string>({"tanh", "erf"}));
    if (random_.chance(35)) {
      what("model.dropout", "0.1");
    }
    // At least a tenth of the tokens is left for validation, which is more than one context.
    const std::int64_t tokens = random_.number(200, 900);
    if (random_.chance(70)) {
      job_.files["data.txt"] = sentences(static_cast<std::size_t>(tokens));
      what("data.text", "data.txt");
      what("data.tokenizer", random_.one_of<std::string>({"char", "byte"}));
    } else {
      std::string& file = job_.files["data.bin"];
      const std::int64_t vocabulary = random_.number(2, 60);
      const bool wide = types_.chance(40);
      for (std::int64_t i = 0; i < tokens; ++i) {
        file += static_cast<char>(random_.number(0, vocabulary - 1));
        file.append(wide ? 3 : 1, '\0');
      }
      what("data.tokens", "data.bin");
      what("data.token_type", wide ? "uint32" : "uint16");
      what("model.vocab", std::to_string(vocabulary + random_.number(0, 5)));
    }
    return {.name = "gpt", .layers = layers};
  }

  template <typename Number>
  std::string array(const char* type, const std::string& shape, std::int64_t count, std::int64_t classes) {
    std::string bytes;
    for (std::int64_t i = 0; i < count; ++i) {
      const Number value = classes > 0 ? static_cast<Number>(random_.number(0, classes - 1))
                                       : static_cast<Number>(random_.number(-1000, 1000)) / static_cast<Number>(500);
      bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    return npy_file(fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}", type, shape), bytes);
  }

  Model perceptron() {
    const std::int64_t samples = random_.number(20, 80);
    const std::int64_t inputs = random_.number(1, 9);
    const std::int64_t outputs = random_.number(2, 6);
    const bool labels = random_.chance(50);
    what("model.name", "mlp");
    what("model.hidden", std::to_string(random_.number(1, 20)));
    what("model.loss", labels ? "cross_entropy" : "squared_error");
    if (labels) {
      what("model.outputs", std::to_string(outputs));
    }
    job_.files["x.npy"] = array<float>("<f4", fmt::format("({}, {})", samples, inputs), samples * inputs, 0);
    job_.files["y.npy"] = labels ? array<std::int32_t>("<i4", fmt::format("({},)", samples), samples, outputs)
                                 : array<float>("<f4", fmt::format("({}, {})", samples, outputs), samples * outputs, 0);
    what("data.arrays", "x.npy, y.npy");
    return {.name = "mlp"};
  }

  void batches() {
    const std::int64_t batch = random_.number(1, 12);
    const std::int64_t microbatches = random_.chance(40) ? 1 : random_.number(1, std::min<std::int64_t>(batch, 6));
    what("data.batch", std::to_string(batch));
    what("data.microbatches", std::to_string(microbatches));
    const bool validates = random_.chance(75);
    what("data.split", validates ? "0.9" : "1");
    if (validates && random_.chance(30)) {
      what("data.eval_batch", std::to_string(random_.number(1, 9)));
    }
    if (validates && random_.chance(40)) {
      what("train.eval_every", std::to_string(random_.number(1, 3)));
    }
  }

  void optimizer() {
    const std::int64_t steps = random_.chance(5) ? 0 : random_.number(1, 4);
    what("train.steps", std::to_string(steps));
    const bool sgd = random_.chance(30);
    what("train.optimizer", sgd ? "sgd" : "adamw");
    what("train.learning_rate", random_.one_of<std::string>({"1e-3", "3e-3", "1e-2"}));
    what("train.schedule", random_.one_of<std::string>({"cosine", "linear", "constant"}));
    if (sgd && random_.chance(50)) {
      what("train.momentum", "0.9");
    }
    if (random_.chance(40)) {
      what("train.weight_decay", "0.1");
    }
    if (random_.chance(50)) {
      what("train.clip", random_.one_of<std::string>({"0.1", "1", "100"}));
    }
    if (random_.chance(30)) {
      what("train.warmup", std::to_string(random_.number(0, steps)));
    }
    if (random_.chance(35)) {
      how("train.remat", random_.one_of<std::string>({"layer", "selective", "gathers"}));
    }
  }

  void ranks(std::int64_t count) {
    how("job.ranks", std::to_string(count));
    how("job.transport", random_.one_of(transports_));
    how("job.check_every", random_.chance(90) ? "1" : "0");
    if (types_.chance(30)) {
      how("job.check", types_.one_of<std::string>({"replicas, transfers", "states, replicas, transfers"}));
    }
    how_maybe(15, "job.deterministic", "true");
    how_maybe(5, "job.trace", "steps");
  }

  std::int64_t few_ranks() { return random_.one_of<std::int64_t>({1, 2, 2, 2, 2, 3, 3, 3, 4, 4, 5, 6, 8}); }

  /// Gives each axis a size, for at most eight ranks in all. Axes of size 1 may be left out, but one axis stays.
  std::vector<std::string> mesh(const std::vector<std::string>& names, std::int64_t most_stages = 1) {
    std::vector<Setting> axes;
    std::int64_t product = 1;
    for (const std::string& name : names) {
      const std::int64_t most = name == "pipe" ? std::min<std::int64_t>(most_stages, 3) : 3;
      const std::int64_t size = std::min(8 / product, random_.number(1, most));
      product *= size;
      if (size > 1 || random_.chance(30) || (axes.empty() && name == names.back())) {
        axes.push_back({"mesh." + name, std::to_string(size)});
      }
    }
    ranks(product);
    std::vector<std::string> given;
    std::vector<std::string> split;  // the axes with several ranks
    for (const Setting& axis : axes) {
      how(axis.name, axis.value);
      given.push_back(axis.name.substr(std::string("mesh.").size()));
      if (axis.value != "1") {
        split.push_back(given.back());
      }
    }
    if (!split.empty() && random_.chance(30)) {
      how("transport." + random_.one_of(split), random_.one_of(transports_));
    }
    return given;
  }

  void strategy(const std::string& name) { how("job.strategy", name); }

  void buckets() { how_maybe(40, "strategy.bucket_mb", random_.one_of<std::string>({"0", "0.001", "0.01"})); }

  void gathers() {
    how_maybe(30, "strategy.unit", random_.one_of<std::string>({"layer", "tensor"}));
    how_maybe(30, "strategy.keep", random_.one_of<std::string>({"*", "layer*"}));
  }

  void schedule(std::int64_t layers, std::int64_t stages) {
    std::vector<std::string> schedules = {"gpipe", "1f1b", "zb-h1"};
    if (layers >= 2 * stages) {
      schedules.insert(schedules.end(), 2, "interleaved");
    }
    how("strategy.schedule", random_.one_of(schedules));
  }

  void split(const Model& model) {
    std::vector<std::string> names = {"dp", "zero1", "zero2", "zero3", "hsdp", "named"};
    if (model.layers > 0) {
      names.insert(names.end(), {"tp", "3d", "3d", "3d", "3d"});
    }
    if (model.layers > 1) {
      names.insert(names.end(), {"pp", "pp"});
    }
    const std::string name = random_.one_of(names);
    if (name == "named") {
      return split_named(model.name == "gpt" ? std::vector<std::string>{"batch", "heads", "mlp", "vocab"}
                                             : std::vector<std::string>{"batch", "mlp"});
    }
    strategy(name);
    if (name == "3d") {
      return split_3d(model);
    }
    if (name == "hsdp") {
      mesh({"replica", "shard"});
    } else if (name == "pp") {
      const std::int64_t stages = random_.number(2, model.layers);
      ranks(stages);
      schedule(model.layers, stages);
    } else {
      ranks(few_ranks());
    }
    if (name == "tp") {
      how_maybe(50, "strategy.sequence", "true");
    } else if (name != "pp") {
      buckets();
      if (name == "zero3" || name == "hsdp") {
        gathers();
      }
    }
  }

  void split_3d(const Model& model) {
    std::vector<std::string> axes = {"replica", "data", "model"};
    if (model.layers > 1) {
      axes.insert(axes.begin() + random_.number(0, 3), "pipe");
    }
    mesh(axes, model.layers);
    const auto pipe = std::find_if(job_.how.begin(), job_.how.end(),
                                   [](const Setting& setting) { return setting.name == "mesh.pipe"; });
    if (pipe != job_.how.end() && pipe->value != "1") {
      schedule(model.layers, std::stoll(pipe->value));
    }
    how_maybe(60, "strategy.zero", std::to_string(random_.number(0, 3)));
    how_maybe(40, "strategy.sequence", "true");
    buckets();
  }

  void split_named(const std::vector<std::string>& axes) {
    strategy("named");
    const std::vector<std::string> over =
        mesh(random_.chance(60) ? std::vector<std::string>{"a"} : std::vector<std::string>{"a", "b"});
    std::vector<std::string> free = over;
    for (const std::string& axis : axes) {
      if (!free.empty() && random_.chance(60)) {
        const std::string mesh_axis = random_.one_of(free);
        how("sharding." + axis, mesh_axis);
        if (axis == "x") {
          std::erase(free, mesh_axis);  // a mesh axis cannot split two dimensions of one tensor
        }
      }
    }
    if (std::none_of(job_.how.begin(), job_.how.end(),
                     [](const Setting& setting) { return setting.name.starts_with("sharding."); })) {
      how("sharding." + axes.front(), over.front());
    }
  }

  Random random_;
  Random types_;  ///< for element types
  const std::vector<std::string>& transports_;
  RandomJob job_;
};

}  // namespace

RandomJob random_job(std::uint64_t seed, const std::vector<std::string>& transports) {
  return Generator(seed, transports).make(seed);
}

const std::vector<std::string>& generated_strategies() {
  static const std::vector<std::string> names = {"3d", "dp",    "hsdp",  "named", "pp",
                                                 "tp", "zero1", "zero2", "zero3", reference_strategy};
  return names;
}

std::string to_ini(const std::vector<Setting>& settings) {
  std::vector<std::pair<std::string, std::string>> sections;  // in the order of their first settings
  for (const Setting& setting : settings) {
    const std::size_t dot = setting.name.rfind('.');  // [transport.NAME]
    const std::string name = setting.name.substr(0, dot);
    auto section = std::find_if(sections.begin(), sections.end(), [&](const auto& each) { return each.first == name; });
    if (section == sections.end()) {
      section = sections.insert(sections.end(), {name, ""});
    }
    section->second += fmt::format("{} = {}\n", setting.name.substr(dot + 1), setting.value);
  }
  std::string text;
  for (const auto& [name, lines] : sections) {
    text += fmt::format("{}[{}]\n{}", text.empty() ? "" : "\n", name, lines);
  }
  return text;
}

void write_files(const RandomJob& job, const std::filesystem::path& folder) {
  for (const auto& [name, content] : job.files) {
    write_file(folder / name, content);
  }
}

}  // namespace shardrun::test
