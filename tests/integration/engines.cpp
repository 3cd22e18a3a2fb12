#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "tests/integration/program.h"
#include "tests/support/catch.h"
#include "tests/support/mpirun.h"
#include "tests/support/npy.h"

// Engines: the examples against the model of the same network, and an engine that makes mistakes.

using namespace shardrun::test;

namespace {

constexpr int samples = 40;
constexpr int features_of_sample = 6;

/// Values that any machine makes alike.
std::string numbers(std::size_t count) {
  std::minstd_rand random(1);
  std::string bytes;
  for (std::size_t i = 0; i < count; ++i) {
    const float value = static_cast<float>(random() % 1000) / 500.0F - 1.0F;
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return bytes;
}

std::string labels() {
  std::string bytes;
  for (int i = 0; i < samples; ++i) {
    const int label = i * i % 3;
    bytes.append(reinterpret_cast<const char*>(&label), sizeof label);
  }
  return bytes;
}

std::string array_file(const std::string& descr, const std::string& shape, const std::string& bytes) {
  return npy_file("{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }", bytes);
}

/// A folder with arrays and two jobs that train the same network: `model.ini` and `engine.ini`.
class EngineFolder {
 public:
  EngineFolder() {
    write_file(path() / "x.npy", array_file("<f4", "(40, 6)", numbers(samples * features_of_sample)));
    write_file(path() / "y.npy", array_file("<f4", "(40, 2)", numbers(samples * 2)));
    write_file(path() / "labels.npy", array_file("<i4", "(40,)", labels()));
    const std::string rest = R"(
[data]
arrays = x.npy, y.npy
batch = 7
[train]
steps = 5
learning_rate = 0.01
weight_decay = 0.1
clip = 0.5
eval_every = 2
)";
    write_file(path() / "model.ini", "[job]\noutput = model\n[model]\nname = mlp\nhidden = 5\n" + rest);
    write_file(path() / "engine.ini", "[job]\nengine = data_parallel\noutput = engine\n[plugins]\npath = " +
                                          std::string(SHARDRUN_EXAMPLE_ENGINES) + "\n[engine]\nhidden = 5\n" + rest);
  }

  [[nodiscard]] const std::filesystem::path& path() const { return folder_.path(); }

  /// `job`: "model" or "engine", which is also the name of its output folder.
  [[nodiscard]] Ended run(const std::string& job, const std::vector<std::string>& settings = {}) const {
    return run_program(path(), with_settings({job + ".ini"}, settings));
  }

  /// The losses, validation losses and norms of a run.
  [[nodiscard]] std::vector<double> results(const std::string& job) const {
    std::vector<double> found;
    for (const boost::json::object& line : read_json_lines(path() / job / "metrics.jsonl")) {
      for (const char* const key : {"loss", "val_loss", "grad_norm"}) {
        if (line.contains(key)) {
          found.push_back(line.at(key).to_number<double>());
        }
      }
    }
    return found;
  }

 private:
  TemporaryFolder folder_;
};

void require_close(const std::vector<double>& found, const std::vector<double>& expected) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(std::abs(found[i] / expected[i] - 1) < 2e-6);
  }
}

std::vector<std::string> mistaken(const std::string& mistake, const std::string& timeout = "20") {
  return {"engine.mistake=" + mistake, "job.ranks=2", "job.timeout=" + timeout};
}

/// engine.ini without the options of its engine.
void write_probing(const EngineFolder& folder) {
  write_file(folder.path() / "engine.ini",
             "[job]\nengine = probing\noutput = engine\n[plugins]\npath = " + std::string(SHARDRUN_EXAMPLE_ENGINES) +
                 "\n[data]\narrays = x.npy, y.npy\nbatch = 7\n[train]\nsteps = 2\n");
}

}  // namespace

TEST_CASE("an engine gives the results of the model of its network, over each transport", "[engines]") {
  const EngineFolder folder;
  REQUIRE(folder.run("model").code == 0);
  const std::vector<double> expected = folder.results("model");
  const std::string engine = GENERATE("data_parallel", "tensor_parallel", "zero3", "pipeline", "ring");
  for (const std::string& transport : installed("transport")) {
    for (const char* const ranks : {"1", "2", "3", "4"}) {
      const Ended ended = folder.run(
          "engine", {"job.engine=" + engine, "job.transport=" + transport, std::string("job.ranks=") + ranks});
      INFO(engine << " on " << ranks << " over " << transport << ": " << ended.err);
      REQUIRE(ended.code == 0);
      require_close(folder.results("engine"), expected);
    }
  }
}

TEST_CASE("an engine on one device gives the results of the model", "[engines]") {
  const EngineFolder folder;
  REQUIRE(folder.run("model").code == 0);
  REQUIRE(folder.run("engine", {"job.engine=unsharded"}).code == 0);
  require_close(folder.results("engine"), folder.results("model"));
  const Ended refused = folder.run("engine", {"job.engine=unsharded", "job.ranks=2"});
  CHECK(refused.code == 2);
  CHECK(refused.err.find("it runs on one device: set [job] ranks = 1") != std::string::npos);
}

TEST_CASE("an engine learns labels, in microbatches, with any optimizer", "[engines]") {
  const EngineFolder folder;
  const std::vector<std::string> settings = {
      "data.arrays=" + (folder.path() / "x.npy").string() + "," + (folder.path() / "labels.npy").string(),
      "data.microbatches=3", "train.optimizer=sgd", "train.momentum=0.9"};
  std::vector<std::string> of_model = settings;
  of_model.emplace_back("model.loss=cross_entropy");
  REQUIRE(folder.run("model", of_model).code == 0);
  const std::string engine = GENERATE("data_parallel", "tensor_parallel", "zero3", "pipeline");
  std::vector<std::string> of_engine = settings;
  of_engine.insert(of_engine.end(), {"job.engine=" + engine, "job.ranks=3", "train.loss=cross_entropy"});
  const Ended ended = folder.run("engine", of_engine);
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  require_close(folder.results("engine"), folder.results("model"));
}

TEST_CASE("an engine loads the weights of a model, and its own", "[engines]") {
  const EngineFolder folder;
  REQUIRE(folder.run("model", {"job.seed=7"}).code == 0);
  const std::string engine = GENERATE("unsharded", "data_parallel", "tensor_parallel", "zero3", "pipeline", "ring");
  const std::string ranks = engine == "unsharded" ? "1" : "3";
  const auto loaded = [&](const std::string& of) {
    const Ended ended = folder.run(
        "engine", {"job.engine=" + engine, "job.ranks=" + ranks, "train.steps=1", "train.learning_rate=1e-30",
                   "train.weight_decay=0", "job.checkpoint=" + (folder.path() / of / "weights.safetensors").string()});
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    std::filesystem::copy_file(folder.path() / "engine/weights.safetensors", folder.path() / "copy.safetensors",
                               std::filesystem::copy_options::overwrite_existing);
    return read_file(folder.path() / "engine/weights.safetensors");
  };
  const std::string of_model = read_file(folder.path() / "model/weights.safetensors");
  const std::string first = loaded("model");
  CHECK(first.substr(first.size() - 160) == of_model.substr(of_model.size() - 160));  // 6 · 5 + 5 · 2 values
  std::filesystem::create_directory(folder.path() / "kept");
  std::filesystem::copy_file(folder.path() / "copy.safetensors", folder.path() / "kept/weights.safetensors");
  CHECK(loaded("kept") == first);
}

TEST_CASE("an engine over mpi gives the results of the model", "[engines]") {
  if (!has_mpirun()) {
    return;
  }
  const EngineFolder folder;
  REQUIRE(folder.run("model").code == 0);
  for (const std::string engine : {"data_parallel", "tensor_parallel", "zero3", "pipeline", "ring"}) {
    for (const std::string ranks : {"1", "2", "3", "4"}) {
      const Ended ended =
          run_script(folder.path(), mpirun + " -n " + ranks + " \"$0\" engine.ini --set job.engine=" + engine +
                                        " --set job.transport=mpi --set job.ranks=" + ranks);
      INFO(engine << " on " << ranks << ": " << ended.err);
      REQUIRE(ended.code == 0);
      require_close(folder.results("engine"), folder.results("model"));
    }
  }
}

TEST_CASE("every collective gives what its name says, on uneven and empty arrays", "[engines]") {
  const EngineFolder folder;
  write_probing(folder);
  for (const std::string& transport : installed("transport")) {
    for (const char* const ranks : {"1", "2", "3", "4"}) {
      const Ended ended = folder.run("engine", {"job.transport=" + transport, std::string("job.ranks=") + ranks});
      INFO(ranks << " over " << transport << ": " << ended.err);
      CHECK(ended.code == 0);
    }
  }
}

TEST_CASE("an engine's mistake is named", "[engines]") {
  struct Mistake {
    std::string mistake;
    std::string message;
  };
  const auto [mistake, message] = GENERATE(values<Mistake>({
      {"axis", "all_gather: there is no axis 2 in an array [2, 2], whose axes are counted from 0"},
      {"shape", "all_reduce: the array of rank 1 is [2, 3], and that of rank 0 [1, 3]: they have to be equal"},
      {"other extents",
       "all_gather: the array of rank 1 is [2, 2], and that of rank 0 [2, 1]: they have to be equal except along axis "
       "0"},
      {"order", "rank 1 calls barrier, and rank 0 calls all_reduce: all ranks call the collectives in one order"},
      {"op", "the op is 'mean', expected sum, product, min or max"},
      {"element", "rank 1 calls all_reduce of i32 elements, and rank 0 of f32: all ranks call the same"},
      {"rank", "send: there is no rank 7: the job has 2"},
      {"itself", "cannot exchange messages with itself"},
      {"root", "broadcast: there is no rank -1 to be the root: the job has 2"},
      {"message", "rank 0 sent an array [2, 3] of f32, and it is received into one [3, 2] of f32"},
      {"swallow", "all_gather: there is no axis 5 in an array [2]"},
      {"deaf", "for which it has not waited; the first is one to rank"},
      {"throw", "engine 'probing', forward: it has had enough"},
      {"predictions", "engine 'probing', forward: its predictions: they are [1, 1], expected ["},
      {"gradient", "engine 'probing', backward: backward returned no gradient of 'w'"},
      {"copies", "the copies of parameter w differ"},
      {"gap", "the ranks' parts of 'cut' have 2 of its 4 elements"},
      {"refuse", "this job is not for it"},
  }));
  const EngineFolder folder;
  write_probing(folder);
  const Ended ended = folder.run("engine", mistaken(mistake));
  INFO(mistake << ": " << ended.err);
  CHECK(ended.code != 0);
  CHECK(ended.err.find(message) != std::string::npos);
}

TEST_CASE("a rank that dies while another waits for its message is named, long before the deadline", "[engines]") {
  const EngineFolder folder;
  write_probing(folder);
  for (const std::string& transport : installed("transport")) {
    std::vector<std::string> settings = mistaken("killed", "300");
    settings.push_back("job.transport=" + transport);
    const Ended ended = folder.run("engine", settings);
    INFO(transport << ": " << ended.err);
    CHECK(ended.code == 1);
    CHECK(ended.err.find("rank 1") != std::string::npos);
    CHECK(ended.err.find("SIGKILL") != std::string::npos);
  }
}

TEST_CASE("a message that never comes fails the job at its deadline", "[engines]") {
  const EngineFolder folder;
  write_probing(folder);
  const Ended ended = folder.run("engine", mistaken("stuck", "1"));
  INFO(ended.err);
  CHECK(ended.code == 1);
  CHECK(ended.err.find("rank 1") != std::string::npos);
}

TEST_CASE("what an engine has no use for is refused", "[engines]") {
  const EngineFolder folder;
  struct Refusal {
    std::string setting;
    std::string message;
  };
  const auto [setting, message] = GENERATE(values<Refusal>({
      {"job.strategy=dp", "[job] strategy has no effect with [job] engine = data_parallel"},
      {"model.name=mlp", "[model] has no effect with [job] engine = data_parallel"},
      {"mesh.data=1", "[mesh] has no effect with [job] engine = data_parallel"},
      {"train.remat=layer", "[train] remat has no effect with [job] engine = data_parallel"},
      {"train.precision=mixed", "[train] precision has no effect with [job] engine = data_parallel"},
      {"train.loss=cross_entropy", "[train] loss = cross_entropy needs integer labels"},
      {"job.engine=nobody", "there is no engine"},
      {"engine.width=3", "width"},
  }));
  const Ended ended = folder.run("engine", {setting});
  INFO(setting << ": " << ended.err);
  CHECK(ended.code == 2);
  CHECK(ended.err.find(message) != std::string::npos);
}

TEST_CASE("settings of engines need an engine, and commands about plans a model", "[engines]") {
  const EngineFolder folder;
  CHECK(folder.run("model", {"engine.hidden=3"}).err.find("[engine] has no effect without [job] engine") !=
        std::string::npos);
  CHECK(folder.run("model", {"train.loss=mse"}).err.find("[train] loss has no effect without [job] engine") !=
        std::string::npos);
  for (const std::vector<std::string>& words : {std::vector<std::string>{"plan", "engine.ini"},
                                                {"verify", "engine.ini"},
                                                {"show-sharding", "engine.ini", "*"},
                                                {"run", "engine.ini", "--dump", "plan"}}) {
    const Ended ended = run_program(folder.path(), words);
    INFO(words[0] << ": " << ended.err);
    CHECK(ended.code == 2);
    CHECK(ended.err.find("[job] engine = data_parallel") != std::string::npos);
  }
}

namespace {

/// Record i: of one sample, or of several.
std::string record(int i) {
  const int rows = i % 4;
  const std::string shape = rows == 0 ? "(6,)" : "(" + std::to_string(rows) + ", 6)";
  std::string bytes;
  for (int value = 0; value < std::max(rows, 1) * features_of_sample; ++value) {
    const float x = static_cast<float>((i * 31 + value * 7) % 100) / 50.0F - 1.0F;
    bytes.append(reinterpret_cast<const char*>(&x), sizeof x);
  }
  return array_file("<f4", shape, bytes);
}

std::string records(int count) {
  std::string all;
  for (int i = 0; i < count; ++i) {
    all += record(i);
  }
  return all;
}

/// Trains an engine on one device and writes `infer.ini`, which uses its weights.
void write_inference(const EngineFolder& folder) {
  REQUIRE(folder.run("engine").code == 0);
  write_file(folder.path() / "infer.ini",
             "[job]\nengine = data_parallel\ntask = infer\noutput = infer\ncheckpoint = engine/weights.safetensors\n"
             "[plugins]\npath = " +
                 std::string(SHARDRUN_EXAMPLE_ENGINES) +
                 "\n[engine]\nhidden = 5\n[infer]\nfrom = records.npy\nto = predictions.npy\n");
}

/// The numbers of a stream of .npy records. Their headers end in a newline at a multiple of 64.
std::vector<float> values_of(const std::string& stream) {
  std::vector<float> values;
  for (std::size_t at = 0; at < stream.size();) {
    if (stream.compare(at, 6, "\x93NUMPY") != 0) {
      FAIL("no array begins at byte " << at);
    }
    const std::size_t end = stream.find('\n', at) + 1;
    const std::size_t next = std::min(stream.find("\x93NUMPY", end), stream.size());
    std::vector<float> of_record((next - end) / sizeof(float));
    std::memcpy(of_record.data(), stream.data() + end, next - end);
    values.insert(values.end(), of_record.begin(), of_record.end());
    at = next;
  }
  return values;
}

/// What the network of the weights predicts: two values for each sample.
std::vector<float> predicted(const EngineFolder& folder, const std::vector<float>& samples_in) {
  const std::string file = read_file(folder.path() / "engine/weights.safetensors");
  std::vector<float> weights(40);
  std::memcpy(weights.data(), file.data() + file.size() - 160, 160);
  std::vector<float> result;
  for (std::size_t sample = 0; sample < samples_in.size(); sample += features_of_sample) {
    float y[2] = {0, 0};
    for (std::size_t h = 0; h < 5; ++h) {
      float z = 0;
      for (std::size_t f = 0; f < features_of_sample; ++f) {
        z += samples_in[sample + f] * weights[f * 5 + h];
      }
      for (std::size_t o = 0; o < 2; ++o) {
        y[o] += std::max(z, 0.0F) * weights[30 + h * 2 + o];
      }
    }
    result.insert(result.end(), {y[0], y[1]});
  }
  return result;
}

void require_predictions(const std::string& stream, const std::vector<float>& expected) {
  const std::vector<float> found = values_of(stream);
  REQUIRE(found.size() == expected.size());
  float worst = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    worst = std::max(worst, std::abs(found[i] - expected[i]));
  }
  CHECK(worst < 1e-5F);
}

}  // namespace

TEST_CASE("engines predict ten thousand records in order, from files and pipes", "[engines]") {
  const EngineFolder folder;
  write_inference(folder);
  const std::string stream = records(10000);
  write_file(folder.path() / "records.npy", stream);
  const std::vector<float> expected = predicted(folder, values_of(stream));
  for (const std::string engine : {"data_parallel", "tensor_parallel", "zero3", "pipeline"}) {
    for (const std::string ranks : {"1", "3"}) {
      const Ended ended = folder.run("infer", {"job.engine=" + engine, "job.ranks=" + ranks});
      INFO(engine << " on " << ranks << ": " << ended.err);
      REQUIRE(ended.code == 0);
      CHECK(ended.out.find("finished after 10000 records") != std::string::npos);
      require_predictions(read_file(folder.path() / "predictions.npy"), expected);
      const Ended piped = run_script(folder.path(), "cat records.npy | \"$0\" infer.ini --set job.engine=" + engine +
                                                        " --set job.ranks=" + ranks +
                                                        " --set infer.from=- --set infer.to=- | cat > piped.npy");
      INFO(piped.err);
      CHECK(piped.err.find("finished after 10000 records") != std::string::npos);
      CHECK(read_file(folder.path() / "piped.npy") == read_file(folder.path() / "predictions.npy"));
    }
  }
}

TEST_CASE("the memory of ten thousand records is that of a thousand", "[engines]") {
  const EngineFolder folder;
  write_inference(folder);
  const auto memory_for = [&](int count) {
    write_file(folder.path() / "records.npy", records(count));
    REQUIRE(folder.run("infer").code == 0);
    const boost::json::object summary = read_json(folder.path() / "infer/summary.json");
    CHECK(summary.at("steps").to_number<int>() == count);
    return summary.at("ranks").as_array().at(0).as_object().at("private_bytes").to_number<double>();
  };
  const double of_few = memory_for(1000);
  CHECK((sanitized || memory_for(10000) < of_few + 262144));  // a record is 72 bytes, the stream 1.2 MB
}

TEST_CASE("a malformed record is named by its number, and skipped or fatal", "[engines]") {
  const EngineFolder folder;
  write_inference(folder);
  struct Malformed {
    std::string bytes;
    std::string message;
  };
  const std::string good = record(1);
  const auto [bytes, message] = GENERATE_COPY(values<Malformed>({
      {"no array at all", "record 3 of "},
      {array_file("<f4", "(1, 5)", std::string(20, '\0')),
       "record 3: its shape is [1, 5], expected [6] or [samples, 6]"},
      {array_file("<f4", "(1, 6)", std::string(20, '\0') + "\xff\xff\xff\x7f"), "a value is NaN or infinite"},
      {array_file("|O", "(1, 6)", std::string(24, '\0')), "record 3 of "},
      {good.substr(0, 40), "record 3 of "},
  }));
  write_file(folder.path() / "records.npy", record(1) + record(2) + bytes + record(3));
  const Ended stopped = folder.run("infer", {"job.ranks=2"});
  INFO(stopped.err);
  CHECK(stopped.code != 0);
  CHECK(stopped.err.find(message) != std::string::npos);
  const Ended skipped = folder.run("infer", {"job.ranks=2", "infer.malformed=skip"});
  INFO(skipped.err << skipped.out);
  CHECK(skipped.code == 0);
  CHECK(skipped.out.find("skipped: ") != std::string::npos);
  CHECK(skipped.out.find(message) != std::string::npos);
  require_predictions(read_file(folder.path() / "predictions.npy"),
                      predicted(folder, values_of(record(1) + record(2) + record(3))));
}

TEST_CASE("a record that is cut short is named", "[engines]") {
  const EngineFolder folder;
  write_inference(folder);
  const std::string last = record(2);
  write_file(folder.path() / "records.npy", record(1) + last.substr(0, last.size() - 4));
  const Ended ended = folder.run("infer");
  INFO(ended.err);
  CHECK(ended.code == 2);
  CHECK(ended.err.find("record 2 of ") != std::string::npos);
  CHECK(ended.err.find("it is cut short: 44 of its 48 bytes are there") != std::string::npos);
}

TEST_CASE("a record is predicted before the next one comes", "[engines]") {
  const EngineFolder folder;
  write_inference(folder);
  write_file(folder.path() / "records.npy", record(1));
  const std::string ranks = GENERATE("1", "2");
  // The second record is written only once the first one's predictions have come.
  const Ended ended =
      run_script(folder.path(),
                 "mkfifo in out; \"$0\" infer.ini --set job.ranks=" + ranks +
                     " --set infer.from=- --set infer.to=- < in > out 2> err & exec 3> in 4< out; cat records.npy >&3; "
                     "head -c 136 <&4 > first.npy; cat records.npy >&3; exec 3>&-; cat <&4 > second.npy; wait");
  INFO(ended.err << read_file(folder.path() / "err"));
  CHECK(read_file(folder.path() / "first.npy").size() == 136);
  CHECK(read_file(folder.path() / "second.npy") == read_file(folder.path() / "first.npy"));
}

TEST_CASE("sizes that disagree with the checkpoint are refused, and task infer without an engine", "[engines]") {
  const EngineFolder folder;
  write_inference(folder);
  write_file(folder.path() / "records.npy", record(1));
  const Ended ended = folder.run("infer", {"infer.features=7"});
  CHECK(ended.code == 2);
  CHECK(ended.err.find("[infer] features = 7, and '") != std::string::npos);
  CHECK(folder.run("infer", {"infer.features=6", "infer.outputs=2"}).code == 0);
  const Ended of_model = folder.run("model", {"job.task=infer"});
  CHECK(of_model.code == 2);
  CHECK(of_model.err.find("[job] task = infer is for engines, and [job] engine is not set; set it") !=
        std::string::npos);
}
