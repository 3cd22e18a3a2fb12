// Models that are applied to arrays. Predictions are the same under each strategy, and equal those of the formulas.

#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>

#include "tests/integration/example_programs.h"
#include "tests/integration/images.h"
#include "tests/support/npy.h"

using namespace shardrun::test;
using Catch::Contains;

namespace {

using Values = std::vector<float>;

std::string array_of(const std::string& descr, const std::string& shape, const std::string& bytes) {
  return npy_file("{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }", bytes);
}

template <typename Number>
std::string bytes_of_all(const std::vector<Number>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Number)};
}

/// Random values from -1 to 1, the same on every machine.
Values numbers(std::size_t count, unsigned seed) {
  std::minstd_rand random(seed);
  Values values(count);
  for (float& value : values) {
    value = static_cast<float>(random() % 1000) / 500.0F - 1.0F;
  }
  return values;
}

/// Removes an array of this shape from the start of `file`, and returns its values. What follows it stays in `file`.
Values take_array(std::string& file, const std::string& shape) {
  INFO(file.substr(0, 128));
  REQUIRE(file.starts_with("\x93NUMPY"));
  const std::size_t begin = file.find('\n') + 1;
  REQUIRE(file.substr(0, begin).find("'<f4', 'fortran_order': False, 'shape': " + shape) != std::string::npos);
  const std::size_t end = std::min(file.find("\x93NUMPY", begin), file.size());
  Values values((end - begin) / sizeof(float));
  std::memcpy(values.data(), file.data() + begin, values.size() * sizeof(float));
  file.erase(0, end);
  return values;
}

Values read_array(const std::filesystem::path& path, const std::string& shape) {
  std::string file = read_file(path);
  Values values = take_array(file, shape);
  CHECK(file.empty());
  return values;
}

double worst_difference(const Values& a, const Values& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return worst;
}

/// The mean cross-entropy of rows of logits.
double cross_entropy(const Values& logits, const std::vector<int>& labels) {
  const std::size_t classes = logits.size() / labels.size();
  double sum = 0;
  for (std::size_t row = 0; row < labels.size(); ++row) {
    double total = 0;
    for (std::size_t c = 0; c < classes; ++c) {
      total += std::exp(static_cast<double>(logits[row * classes + c]));
    }
    sum += std::log(total) - static_cast<double>(logits[row * classes + static_cast<std::size_t>(labels[row])]);
  }
  return sum / static_cast<double>(labels.size());
}

constexpr int features = 6;
constexpr int hidden = 9;
constexpr int new_samples = 23;

/// A folder with `runs/job` of an mlp, and `new.npy` with samples that it has not seen.
class TrainedFolder {
 public:
  TrainedFolder() {
    write_file(path() / "x.npy", array_of("<f4", "(12, 6)", bytes_of_all(numbers(72, 1))));
    write_file(path() / "y.npy", array_of("<f4", "(12, 2)", bytes_of_all(numbers(24, 2))));
    write_file(path() / "new.npy", array_of("<f4", "(23, 6)", bytes_of_all(samples_)));
    write_file(path() / "job.ini",
               "[model]\nname = mlp\nhidden = 9\n[data]\narrays = x.npy, y.npy\nbatch = 4\n"
               "[train]\nsteps = 3\nlearning_rate = 0.05\n[checkpoint]\nevery = 2\n");
    REQUIRE(run_program(path(), {"job.ini"}).code == 0);
  }

  [[nodiscard]] const std::filesystem::path& path() const { return folder_.path(); }
  [[nodiscard]] const Values& samples() const { return samples_; }

  /// Runs `shardrun predict` with these words.
  [[nodiscard]] Ended predict(std::vector<std::string> words) const {
    words.insert(words.begin(), "predict");
    return run_program(path(), words);
  }

  /// The network's predictions for the samples, computed here from a run's weights.
  [[nodiscard]] Values expected(const std::filesystem::path& weights) const {
    const States states = read_states(path() / weights);
    const Values& w0 = states.at("layer_0/weights");
    const Values& w1 = states.at("layer_1/weights");
    Values result;
    for (std::size_t sample = 0; sample < new_samples; ++sample) {
      double y[2] = {0, 0};
      for (std::size_t h = 0; h < hidden; ++h) {
        double z = 0;
        for (std::size_t f = 0; f < features; ++f) {
          z += static_cast<double>(samples_[sample * features + f]) * static_cast<double>(w0[f * hidden + h]);
        }
        for (std::size_t o = 0; o < 2; ++o) {
          y[o] += std::max(z, 0.0) * static_cast<double>(w1[h * 2 + o]);
        }
      }
      result.insert(result.end(), {static_cast<float>(y[0]), static_cast<float>(y[1])});
    }
    return result;
  }

 private:
  TemporaryFolder folder_;
  Values samples_ = numbers(static_cast<std::size_t>(new_samples) * features, 3);
};

}  // namespace

TEST_CASE("predict applies a trained model to new samples, under each strategy as the formula says", "[predict]") {
  const TrainedFolder folder;
  const Values expected = folder.expected("runs/job/weights.safetensors");
  for (const std::vector<std::string>& split : std::vector<std::vector<std::string>>{
           {"--batch=23"},
           {"--batch=5", "--ranks=3", "--strategy=dp"},
           {"--batch=5", "--ranks=2", "--strategy=tp"},
           {"--batch=5", "--ranks=2", "--strategy=pp"},
           {"--batch=5", "--ranks=2", "--strategy=zero3"},
           {"--batch=5", "--ranks=4", "--strategy=3d", "--set", "mesh.data=2", "--set", "mesh.model=2"}}) {
    std::vector<std::string> words = {"runs/job", "--from", "new.npy", "--to", "new.out.npy", "--replace"};
    words.insert(words.end(), split.begin(), split.end());
    const Ended ended = folder.predict(words);
    INFO(split.back() << ": " << ended.err);
    REQUIRE(ended.code == 0);
    CHECK_THAT(ended.out, Contains("finished after 23 samples; results in new.out.npy"));
    CHECK(worst_difference(read_array(folder.path() / "new.out.npy", "(23, 2)"), expected) < 1e-5);

    // A run needs the planned memory, which is for weights and activations only.
    const Ended planned = run_program(folder.path(), {"plan", "runs/predict/job.ini", "--json"});
    REQUIRE(planned.code == 0);
    const boost::json::object plan = boost::json::parse(planned.out).as_object();
    const boost::json::object summary = read_json(folder.path() / "runs/predict/summary.json");
    for (const boost::json::value& alike : plan.at("ranks").as_array()) {
      const boost::json::object& bytes = alike.at("bytes").as_object();
      CHECK(bytes.at("gradients") == 0);
      CHECK(bytes.at("optimizer") == 0);
      for (const boost::json::value& rank : alike.at("members").as_array()) {
        const boost::json::value& run = summary.at("ranks").as_array().at(rank.to_number<std::size_t>());
        CHECK(run.at("peak_bytes") == bytes.at("peak"));
        CHECK(run.at("sent_bytes") == alike.at("sent_bytes"));  // in whole batches; the last one is smaller
        CHECK(run.at("sent_bytes").as_object().empty() == (split.size() == 1));
      }
    }
  }
}

TEST_CASE("predict takes runs, checkpoints, weights and job files", "[predict]") {
  const TrainedFolder folder;
  const Values expected = folder.expected("runs/job/weights.safetensors");
  write_file(folder.path() / "apply.ini",
             "[job]\ntask = infer\ncheckpoint = runs/job\n[model]\nname = mlp\nhidden = 9\n[infer]\nfrom = new.npy\n");
  const std::string checkpoints = "runs/job/checkpoints/";
  for (const std::string& what : {std::string("runs/job"), std::string("runs/job/weights.safetensors"),
                                  std::string("job.ini"), checkpoints + "step-000003"}) {
    INFO(what);
    REQUIRE(folder.predict({what, "--from", "new.npy", "--to", "out.npy", "--replace"}).code == 0);
    CHECK(worst_difference(read_array(folder.path() / "out.npy", "(23, 2)"), expected) < 1e-5);
  }
  REQUIRE(folder.predict({"apply.ini", "--to", "apply.npy"}).code == 0);
  CHECK(read_file(folder.path() / "apply.npy") == read_file(folder.path() / "out.npy"));
  REQUIRE(folder.predict({checkpoints + "step-000002", "--from", "new.npy", "--to", "earlier.npy"}).code == 0);
  CHECK(worst_difference(read_array(folder.path() / "earlier.npy", "(23, 2)"), expected) > 1e-4);

  // Without --to the array goes to standard output.
  const Ended piped = folder.predict({"runs/job", "--from", "new.npy"});
  CHECK(piped.out == read_file(folder.path() / "out.npy"));
  CHECK_THAT(piped.err, Contains("results in standard output"));
}

TEST_CASE("predict applies a model to a stream of records, which each get their predictions", "[predict]") {
  const TrainedFolder folder;
  const Values expected = folder.expected("runs/job/weights.safetensors");
  // One sample, then several, none, and the rest.
  std::string stream;
  auto add = [&, done = std::size_t{0}](std::size_t rows, bool is_sample) mutable {
    const auto from = folder.samples().begin() + static_cast<std::ptrdiff_t>(done * features);
    const std::string shape = is_sample ? "(6,)" : "(" + std::to_string(rows) + ", 6)";
    stream += array_of("<f4", shape, bytes_of_all(Values(from, from + static_cast<std::ptrdiff_t>(rows * features))));
    done += rows;
  };
  add(1, true);
  add(13, false);
  add(0, false);
  add(9, false);
  write_file(folder.path() / "stream.npy", stream);
  for (const std::string split : {"--ranks=1", "--ranks=2 --strategy=pp", "--ranks=2 --strategy=dp",
                                  "--ranks=2 --strategy=dp --set mesh.data=2 --set mesh.order=1,0"}) {
    const Ended ended = run_script(
        folder.path(), "cat stream.npy | \"$0\" predict runs/job --from - --batch 5 " + split + " | cat > out.npy");
    INFO(split << ": " << ended.err);
    CHECK_THAT(ended.err, Contains("4 records") && Contains("finished after 23 samples"));
    std::string out = read_file(folder.path() / "out.npy");
    Values found = take_array(out, "(2,)");
    for (const char* const shape : {"(13, 2)", "(0, 2)", "(9, 2)"}) {
      const Values of_record = take_array(out, shape);
      found.insert(found.end(), of_record.begin(), of_record.end());
    }
    CHECK(out.empty());
    CHECK(worst_difference(found, expected) < 1e-5);
  }
  // A file with several arrays is such a stream. A malformed record fails the job, which keeps the records before it,
  // or has no predictions.
  write_file(folder.path() / "stream.npy", stream + array_of("<f4", "(7,)", std::string(28, '\0')));
  const std::vector<std::string> words = {"runs/job", "--from", "stream.npy", "--to", "out2.npy"};
  const Ended stopped = folder.predict(words);
  CHECK(stopped.code == 1);
  CHECK_THAT(stopped.err, Contains("record 5: its shape is [7], expected [6] or [samples, 6]"));
  CHECK_THAT(stopped.out, Contains("4 records before the failure, in out2.npy\n"));
  const std::string kept = read_file(folder.path() / "out2.npy");
  const Ended skipped = run_program(
      folder.path(), with_settings({"predict", "runs/job", "--from", "stream.npy", "--to", "out2.npy", "--replace"},
                                   {"infer.malformed=skip"}));
  CHECK(skipped.code == 0);
  CHECK_THAT(skipped.out, Contains("4 records, 1 malformed and skipped"));
  CHECK(read_file(folder.path() / "out2.npy") == kept);
}

TEST_CASE("a model's samples have any shape and type that has as many numbers", "[predict]") {
  const TrainedFolder folder;
  const Values expected = folder.expected("runs/job/weights.safetensors");
  const auto samples_of = [&](std::size_t count) {
    return Values(folder.samples().begin(), folder.samples().begin() + static_cast<std::ptrdiff_t>(count * features));
  };
  const auto part = [&](std::size_t count) {
    return Values(expected.begin(), expected.begin() + static_cast<std::ptrdiff_t>(count * 2));
  };
  const std::vector<double> wide(folder.samples().begin(), folder.samples().begin() + 2 * features);
  const std::string stream =
      array_of("<f4", "(6,)", bytes_of_all(samples_of(1))) + array_of("<f4", "(2, 3)", bytes_of_all(samples_of(1))) +
      array_of("<f4", "(1, 3, 2)", bytes_of_all(samples_of(1))) +     // a record of several samples, which has one
      array_of("<f4", "(3, 1, 1, 2)", bytes_of_all(samples_of(1))) +  // a record of one sample
      array_of("<f4", "(2, 3, 1, 1, 2)", bytes_of_all(samples_of(2))) + array_of("<f8", "(2, 6)", bytes_of_all(wide)) +
      array_of("|i1", "(2, 3)", std::string("\x01\x01\x01\x01\x01\x01")) +
      array_of("<f2", "(6,)", std::string("\0\x3c\0\x3c\0\x3c\0\x3c\0\x3c\0\x3c", 12));
  write_file(folder.path() / "stream.npy", stream);
  REQUIRE(folder.predict({"runs/job", "--from", "stream.npy", "--to", "out.npy", "--ranks=2", "--strategy=tp"}).code ==
          0);
  std::string out = read_file(folder.path() / "out.npy");
  for (const char* const shape : {"(2,)", "(2,)", "(1, 2)", "(2,)"}) {
    CHECK(worst_difference(take_array(out, shape), part(1)) < 1e-5);
  }
  for (int record = 0; record < 2; ++record) {
    CHECK(worst_difference(take_array(out, "(2, 2)"), part(2)) < 1e-5);
  }
  const Values ones = take_array(out, "(2,)");
  CHECK(take_array(out, "(2,)") == ones);
  CHECK(out.empty());
  // A file of one array has samples in its rows.
  write_file(folder.path() / "rows.npy", array_of("<f4", "(23, 3, 2)", bytes_of_all(folder.samples())));
  REQUIRE(folder.predict({"runs/job", "--from", "rows.npy", "--to", "rows_out.npy"}).code == 0);
  CHECK(worst_difference(read_array(folder.path() / "rows_out.npy", "(23, 2)"), expected) < 1e-5);

  // A sample may be a number.
  write_file(folder.path() / "x.npy", array_of("<f4", "(12,)", bytes_of_all(numbers(12, 1))));
  REQUIRE(run_program(folder.path(), with_settings({"job.ini"}, {"job.output=of_numbers"})).code == 0);
  write_file(folder.path() / "scalars.npy", array_of("<f4", "()", bytes_of_all(Values{0.5F})) +
                                                array_of("<f4", "(3,)", bytes_of_all(Values(3, 0.5F))));
  REQUIRE(folder.predict({"of_numbers", "--from", "scalars.npy", "--to", "of_scalars.npy"}).code == 0);
  out = read_file(folder.path() / "of_scalars.npy");
  const Values of_one = take_array(out, "(2,)");
  const Values of_three = take_array(out, "(3, 2)");
  CHECK(worst_difference(Values(of_three.begin(), of_three.begin() + 2), of_one) < 1e-6);
}

TEST_CASE("a model on arrays may have an option context", "[predict]") {
  const TrainedFolder folder;
  write_file(folder.path() / "windows.ini",
             "[model]\nname = windows\n[plugins]\npath = " SHARDRUN_OUTSIDE_STRATEGIES
             "\n[data]\narrays = x.npy, y.npy\nbatch = 4\n[train]\nsteps = 2\nlearning_rate = 0.05\n");
  const Ended trained = run_program(folder.path(), {"windows.ini"});
  INFO(trained.err);
  CHECK(trained.code == 0);
  for (const std::string ranks : {"1", "2"}) {
    const Ended ended =
        folder.predict({"runs/windows", "--from", "new.npy", "--to", "out.npy", "--replace", "--ranks=" + ranks,
                        "--strategy=" + std::string(ranks == "1" ? "single" : "dp")});
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    const States states = read_states(folder.path() / "runs/windows/weights.safetensors");
    float first = 0;
    for (std::size_t f = 0; f < features; ++f) {
      first += folder.samples()[f] * states.at("w")[2 * f];
    }
    CHECK(read_array(folder.path() / "out.npy", "(23, 2)").front() == Approx(first).epsilon(1e-5).margin(1e-6));
  }
}

TEST_CASE("predictions are verified against float64, whatever the split", "[predict]") {
  const TrainedFolder folder;
  write_file(folder.path() / "apply.ini",
             "[job]\ntask = infer\ncheckpoint = runs/job\n[model]\nname = mlp\nhidden = 9\n"
             "[infer]\nfrom = new.npy\nto = out.npy\nbatch = 5\n");
  const auto verify = [&](const std::vector<std::string>& words, const std::vector<std::string>& settings) {
    std::vector<std::string> all = {"verify", "apply.ini", "--json"};
    all.insert(all.end(), words.begin(), words.end());
    const Ended ended = run_program(folder.path(), with_settings(all, settings));
    INFO(ended.err << ended.out);
    return ended;
  };
  for (const std::string strategy : {"single", "dp", "tp", "pp", "zero3"}) {
    INFO(strategy);
    const std::vector<std::string> settings = {"job.strategy=" + strategy,
                                               strategy == "single" ? "job.ranks=1" : "job.ranks=2"};
    for (const std::vector<std::string>& words : {std::vector<std::string>{"--steps", "9"}, {"--in-process"}}) {
      const Ended ended = verify(words, settings);
      CHECK(ended.code == 0);
      // Four whole batches, and one of three samples, which comes second.
      CHECK_THAT(ended.out, Contains("\"tensor\": \"outputs\", \"what\": \"prediction\""));
      CHECK_THAT(ended.out, Contains("\"tensor\": \"outputs of 3 samples\", \"what\": \"prediction\""));
      CHECK_THAT(ended.out, Contains("\"steps\": " + std::string(words.size() == 2 ? "5" : "3")));
    }
  }
  CHECK_FALSE(std::filesystem::exists(folder.path() / "out.npy"));
  // A rank gets a wrong number in the first exchange.
  const Ended wrong = verify({}, {"job.strategy=tp", "job.ranks=2", "job.transport=chaos", "transport.chaos.rank=0",
                                  "transport.chaos.corrupt=true", "transport.chaos.at_op=1"});
  CHECK(wrong.code == 1);
  CHECK_THAT(wrong.out, Contains("\"passed\": false"));
  const Ended stream = verify({}, {"infer.from=-"});
  CHECK(stream.code == 2);
  CHECK_THAT(stream.err, Contains("[infer] from is a stream, and predictions are verified of a file of one array"));
}

TEST_CASE("predictions wait for whoever reads them, longer than the ranks' deadline, and for a signal", "[predict]") {
  const TrainedFolder folder;
  const Values many = numbers(std::size_t{12000} * features, 4);
  write_file(folder.path() / "many.npy", array_of("<f4", "(12000, 6)", bytes_of_all(many)));
  write_file(folder.path() / "records.npy",
             array_of("<f4", "(11999, 6)", bytes_of_all(Values(many.begin(), many.end() - features))) +
                 array_of("<f4", "(6,)", bytes_of_all(Values(many.end() - features, many.end()))));
  for (const char* const input : {"many.npy", "records.npy"}) {
    REQUIRE(folder.predict({"runs/job", "--from", input, "--to", "whole.npy", "--replace", "--batch=512"}).code == 0);
    // Nothing reads the predictions until the pipe is full and the deadline is past. A longer wait changes nothing.
    const Ended ended = run_script(folder.path(), "\"$0\" predict runs/job --from " + std::string(input) +
                                                      " --batch 512 --ranks 2 --strategy pp --set job.timeout=1 | "
                                                      "{ sleep 3; cat; } > late.npy");
    INFO(input << ": " << ended.err);
    CHECK(read_file(folder.path() / "late.npy") == read_file(folder.path() / "whole.npy"));
  }
  // Nobody opens the pipe of the predictions for longer than the deadline; another time, a signal comes first.
  for (const char* const split : {"--ranks 1", "--ranks 2 --strategy dp --set job.timeout=1"}) {
    REQUIRE(folder.predict({"runs/job", "--from", "many.npy", "--to", "whole.npy", "--replace"}).code == 0);
    const Ended opened = run_script(
        folder.path(), "rm -f out; mkfifo out; \"$0\" predict runs/job --from many.npy --batch 512 --to out " +
                           std::string(split) + " > log 2>&1 & sleep 3; cat out > piped.npy; wait $!");
    INFO(split << read_file(folder.path() / "log"));
    CHECK(opened.code == 0);
    CHECK(read_file(folder.path() / "piped.npy").size() == read_file(folder.path() / "whole.npy").size());
    const Ended ended = run_script(
        folder.path(), "rm -rf runs/predict; \"$0\" predict runs/job --from many.npy --to out " + std::string(split) +
                           " > log 2>&1 & until grep -q arena runs/predict/log/rank-0.log 2> none; do sleep 0.1; "
                           "done; kill -TERM $!; wait $!");
    INFO(read_file(folder.path() / "log"));
    CHECK(ended.code == 143);
  }
  // A signal ends a job whose stream waits, and leaves no file. A line about a record says that the job has begun.
  write_file(folder.path() / "bad.npy", array_of("<f4", "(7,)", std::string(28, '\0')));
  const Ended stopped = run_script(
      folder.path(),
      "mkfifo in; \"$0\" predict runs/job --from in --to never.npy --ranks 2 --strategy dp --set infer.malformed=skip "
      "> "
      "log & exec 3> in; cat bad.npy >&3; until grep -q skipped log; do sleep 0.1; done; kill -TERM $!; wait $!");
  INFO(stopped.err);
  CHECK(stopped.code == 143);
  CHECK_FALSE(std::filesystem::exists(folder.path() / "never.npy"));
  CHECK_FALSE(std::filesystem::exists(folder.path() / ".never.npy.tmp"));
  // Records that are complete by then stay.
  write_file(folder.path() / "one.npy", array_of("<f4", "(6,)", bytes_of_all(numbers(features, 5))));
  const Ended after_one = run_script(
      folder.path(),
      "\"$0\" predict runs/job --from in --to one_of.npy --ranks 2 --strategy dp --set infer.malformed=skip > log & "
      "exec 3> in; cat one.npy bad.npy >&3; until grep -q skipped log; do sleep 0.1; done; kill -TERM $!; wait $!");
  INFO(after_one.err << read_file(folder.path() / "log"));
  CHECK(after_one.code == 143);
  CHECK_THAT(read_file(folder.path() / "log"),
             Contains("1 record, 1 malformed and skipped before the stop, in one_of.npy\n"));
  std::string one = read_file(folder.path() / "one_of.npy");
  take_array(one, "(2,)");
  CHECK(one.empty());
}

// The validation loss is the loss of the logits.
TEST_CASE("predictions of tokens and of images have the loss that the run has measured", "[predict]") {
  const TemporaryFolder folder;
  constexpr int context = 7;
  constexpr int windows = 5;
  std::vector<std::uint16_t> tokens(windows * context + 1);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<std::uint16_t>((i * i + i / 3) % 13);
  }
  write_file(folder / "tokens.bin", bytes_of_all(tokens));
  write_file(folder / "gpt.ini",
             "[model]\nname = gpt\nlayers = 2\nheads = 2\nwidth = 8\ncontext = 7\nvocab = 13\n"
             "[data]\ntokens = tokens.bin\ntoken_type = uint16\nvalidation_tokens = tokens.bin\nbatch = 4\n"
             "[train]\nsteps = 3\nlearning_rate = 0.01\n");
  REQUIRE(run_program(folder.path(), {"gpt.ini"}).code == 0);
  const std::vector<std::int64_t> inputs(tokens.begin(), tokens.end() - 1);
  write_file(folder / "inputs.npy", array_of("<i8", "(5, 7)", bytes_of_all(inputs)));
  const std::vector<int> targets(tokens.begin() + 1, tokens.end());
  for (const std::string strategy : {"single", "tp", "pp"}) {
    const Ended ended = run_program(
        folder.path(), {"predict", "runs/gpt", "--from", "inputs.npy", "--to", "logits.npy", "--replace", "--batch=2",
                        "--strategy=" + strategy, strategy == "single" ? "--ranks=1" : "--ranks=2"});
    INFO(strategy << ": " << ended.err);
    REQUIRE(ended.code == 0);
    CHECK(cross_entropy(read_array(folder / "logits.npy", "(5, 7, 13)"), targets) ==
          Approx(read_json(folder / "runs/gpt/summary.json").at("val_loss").to_number<double>()).epsilon(1e-5));
  }

  write_images(folder.path());
  const std::string images = (folder / "x.npy").string() + ", " + (folder / "y.npy").string();
  run_job(folder.path(), "run", example("conv_net"),
          {"data.arrays=" + images, "data.validation_arrays=" + images, "data.eval_batch=40", "model.rows=13",
           "model.channels=3", "train.steps=2", "job.output=conv", "job.ranks=1", "job.strategy=single"});
  std::vector<int> labels(40);
  std::iota(labels.begin(), labels.end(), 0);
  std::ranges::transform(labels, labels.begin(), [](int sample) { return sample % 3; });
  const Ended ended = run_program(folder.path(), {"predict", "conv", "--from", "x.npy", "--to", "classes.npy",
                                                  "--batch=40", "--ranks=2", "--strategy=dp"});
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  CHECK(cross_entropy(read_array(folder / "classes.npy", "(40, 3)"), labels) ==
        Approx(read_json(folder / "conv/summary.json").at("val_loss").to_number<double>()).epsilon(1e-5));

  // Weights that do not say how many classes there were need to be told.
  std::string weights = read_file(folder / "conv/weights.safetensors");
  const std::string key = "[trained_on]";
  REQUIRE(weights.find(key) != std::string::npos);
  write_file(folder / "older.safetensors", weights.replace(weights.find(key), key.size(), "[not_said__]"));
  const auto predict_older = [&](const std::vector<std::string>& settings) {
    return run_program(folder.path(), with_settings({"predict", "older.safetensors", "--from", "x.npy", "--to",
                                                     "older.npy", "--batch=40"},
                                                    settings));
  };
  const std::string path = "plugins.path=" SHARDRUN_EXAMPLE_PROGRAMS;
  const Ended refused = predict_older({path});
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, Contains("[infer] outputs: set it to the number of classes of model conv_net"));
  REQUIRE(predict_older({path, "infer.outputs=3"}).code == 0);
  CHECK(worst_difference(read_array(folder / "older.npy", "(40, 3)"), read_array(folder / "classes.npy", "(40, 3)")) <
        1e-5);
}

TEST_CASE("predict refuses what it cannot read or write before anything starts", "[predict]") {
  const TrainedFolder folder;
  const auto write = [&](const char* name, const std::string& file) { write_file(folder.path() / name, file); };
  write("wide.npy", array_of("<f4", "(2, 7)", std::string(56, '\0')));
  write("flat.npy", array_of("<f4", "(6,)", std::string(24, '\0')));
  write("complex.npy", array_of("<c8", "(1, 6)", std::string(48, '\0')));
  write("cut.npy", array_of("<f4", "(2, 6)", std::string(44, '\0')));
  write("nan.npy", array_of("<f4", "(1, 6)", bytes_of({0.0F, 0.0F, std::nanf(""), 0.0F, 0.0F, 0.0F})));
  write("there.npy", "");
  write("other.ini",
        "[job]\ntask = infer\ncheckpoint = runs/job\n[model]\nname = gpt\nlayers = 1\nheads = 1\nwidth = "
        "2\ncontext = 6\n[infer]\nfrom = new.npy\nto = out.npy\n");
  write("spring.ini",
        "[model]\nname = spring\n[train]\nsteps = 1\nlearning_rate = 0.1\n[plugins]\npath = " SHARDRUN_EXAMPLE_PROGRAMS
        "\n");
  REQUIRE(run_program(folder.path(), {"spring.ini"}).code == 0);
  const auto refused = [&](std::vector<std::string> words, const std::string& why) {
    const Ended ended = folder.predict(std::move(words));
    INFO(ended.err);
    CHECK(ended.code == 2);
    CHECK_THAT(ended.err, Contains(why));
    CHECK_FALSE(std::filesystem::exists(folder.path() / "out.npy"));
    CHECK_FALSE(std::filesystem::exists(folder.path() / "runs/predict"));
  };
  const auto refused_input = [&](const std::string& input, const std::string& why) {
    refused({"runs/job", "--from", input, "--to", "out.npy", "--ranks=2", "--strategy=dp"}, why);
  };
  refused_input("wide.npy", "wide.npy' has 7 numbers in a row, and the model was trained on samples of 6");
  refused_input("flat.npy", "flat.npy' has 1 numbers in a row, and the model was trained on samples of 6");
  refused_input("complex.npy", "its dtype '<c8' is not supported");
  refused_input("cut.npy", "shape (2, 6) of float32 needs 48 bytes, the file has 44: it is cut short");
  refused_input("nan.npy", "has NaN in row 0, column 2");
  refused_input("missing.npy", "--from: [infer] from: cannot read");
  refused({"runs/job", "--from", "new.npy", "--to", "there.npy"},
          "exists: choose another name, or replace it with --replace");
  refused({"runs/job", "--from", "new.npy", "--to", "nowhere/out.npy"}, "there is no folder");
  refused({"runs/job", "--from", "new.npy", "--to", "new.npy", "--replace"}, "is a file that the job reads");
  refused({"runs/job", "--to", "out.npy"}, "predict: name the array of samples with --from FILE.npy");
  refused({"nowhere", "--from", "new.npy", "--to", "out.npy"}, "there is no run, checkpoint, weights file or job file");
  refused({"other.ini"}, "holds the model 'mlp', and the job has 'gpt'");
  refused({"runs/job", "--from", "new.npy", "--to", "out.npy", "--set", "job.trace=steps"},
          "[job] trace has no effect with [job] task = infer");
  refused({"runs/spring", "--from", "new.npy", "--to", "out.npy"}, "model spring has no function forward");
}
