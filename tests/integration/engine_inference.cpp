#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>

#include "tests/integration/engine_folder.h"
#include "tests/support/catch.h"

// Engines that predict records.

using namespace shardrun::test;

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

/// The numbers of a stream of .npy records. A record's header ends with its first newline.
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

TEST_CASE("engines predict records in order, from files and pipes", "[engines]") {
  const EngineFolder folder;
  write_inference(folder);
  const auto [engine, ranks, count] = GENERATE(table<std::string, std::string, int>({
      {"tensor_parallel", "2", depth(10000, 300, 300)},
      {"data_parallel", "1", 1000},
      {"data_parallel", "3", 300},
      {"zero3", "3", 300},
      {"pipeline", "3", 300},
  }));
  const std::string stream = records(count);
  write_file(folder.path() / "records.npy", stream);
  const Ended ended = folder.run("infer", {"job.engine=" + engine, "job.ranks=" + ranks});
  INFO(engine << " on " << ranks << ": " << ended.err);
  REQUIRE(ended.code == 0);
  const std::string finished = "finished after " + std::to_string(count) + " records";
  CHECK(ended.out.find(finished) != std::string::npos);
  require_predictions(read_file(folder.path() / "predictions.npy"), predicted(folder, values_of(stream)));
  const Ended piped = run_script(folder.path(), "cat records.npy | \"$0\" infer.ini --set job.engine=" + engine +
                                                    " --set job.ranks=" + ranks +
                                                    " --set infer.from=- --set infer.to=- | cat > piped.npy");
  INFO(piped.err);
  CHECK(piped.err.find(finished) != std::string::npos);
  CHECK(read_file(folder.path() / "piped.npy") == read_file(folder.path() / "predictions.npy"));
}

TEST_CASE("a record without samples has predictions without rows, and a wrong shape is named", "[engines]") {
  const EngineFolder folder;
  write_inference(folder);
  write_file(folder.path() / "records.npy", record(1) + array_file("<f4", "(0, 6)", "") + record(2));
  const std::string engine = GENERATE("data_parallel", "pipeline");
  const Ended ended = folder.run("infer", {"job.engine=" + engine, "job.ranks=2"});
  INFO(ended.err);
  CHECK(ended.code == 0);
  CHECK(read_file(folder.path() / "predictions.npy").find("(0, 2)") != std::string::npos);
  std::filesystem::remove(folder.path() / "predictions.npy");
  const Ended wrong = folder.run("infer", {"job.engine=faulty", "engine.fault=width", "job.ranks=2"});
  CHECK(wrong.code == 1);
  CHECK(wrong.err.find("the predictions of record 1 are [1, 3], expected [1, 2]") != std::string::npos);
}

TEST_CASE("streams may wait longer than the ranks' deadline", "[engines]") {
  const EngineFolder folder;
  write_inference(folder);
  write_file(folder.path() / "records.npy", records(3000));
  // Nothing reads the predictions until the pipe is full and the deadline is past. A longer wait changes nothing.
  const Ended ended = run_script(
      folder.path(),
      "mkfifo in out; \"$0\" infer.ini --set job.ranks=2 --set job.timeout=1 --set infer.from=- --set infer.to=- < "
      "in "
      "> out 2> err & exec 3> in 4< out; cat records.npy >&3 & exec 3>&-; sleep 4; cat <&4 > late.npy; wait");
  INFO(ended.err << read_file(folder.path() / "err"));
  require_predictions(read_file(folder.path() / "late.npy"), predicted(folder, values_of(records(3000))));
}

TEST_CASE("a signal stops a job whose input stream is waiting", "[engines]") {
  const EngineFolder folder;
  write_inference(folder);
  write_file(folder.path() / "records.npy", record(1));
  const std::string ranks = GENERATE("1", "2");
  const Ended ended = run_script(
      folder.path(), "mkfifo in; exec 3<> in; \"$0\" infer.ini --set job.ranks=" + ranks +
                         " --set infer.from=- --set infer.to=- < in > first.npy 2> err & pid=$!; cat records.npy >&3; "
                         "until test -s first.npy; do :; done; kill -TERM $pid; wait $pid; echo ended with $?");
  INFO(ended.err << read_file(folder.path() / "err"));
  CHECK(ended.out.find("ended with 143") != std::string::npos);
}

TEST_CASE("infer refuses input that is missing, and never overwrites its input", "[engines]") {
  const EngineFolder folder;
  write_inference(folder);
  write_file(folder.path() / "records.npy", record(1));
  const auto refusal = [&](const std::string& setting) {
    const Ended ended = folder.run("infer", {setting});
    CHECK(ended.code == 2);
    return ended.err;
  };
  CHECK(refusal("infer.from=none.npy").find("none.npy: it cannot be read: No such file") != std::string::npos);
  CHECK(refusal("infer.to=records.npy").find("records.npy is a file that the job reads") != std::string::npos);
  CHECK(refusal("infer.to=infer.ini").find("infer.ini is a file that the job reads") != std::string::npos);
  const std::string job = read_file(folder.path() / "infer.ini");
  write_file(folder.path() / "infer.ini", "include = base.ini\n" + job);
  write_file(folder.path() / "base.ini", "[job]\nseed = 3\n");
  std::filesystem::create_hard_link(folder.path() / "base.ini", folder.path() / "link.npy");
  CHECK(refusal("infer.to=link.npy").find("link.npy is a file that the job reads, as include says") !=
        std::string::npos);
  CHECK(read_file(folder.path() / "base.ini") == "[job]\nseed = 3\n");
  CHECK(refusal("infer.to=infer/summary.json").find("that the run itself writes") != std::string::npos);
  CHECK(refusal("job.output=engine").find("which [job] checkpoint names") != std::string::npos);
  CHECK(read_file(folder.path() / "records.npy") == record(1));
}

TEST_CASE("inference needs the same memory for ten thousand records as for a thousand", "[engines]") {
  const EngineFolder folder;
  write_inference(folder);
  const auto memory_for = [&](int count) {
    write_file(folder.path() / "records.npy", records(count));
    std::filesystem::remove(folder.path() / "predictions.npy");
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
      {array_file("<f4", "(1, 6)", std::string(20, '\0') + "\xff\xff\xff\x7f"),
       "its element 5 (counted from 0) is NaN: numbers have to be finite"},
      {array_file("|O", "(1, 6)", std::string(24, '\0')), "record 3 of "},
      {good.substr(0, 40), "record 3 of "},
  }));
  write_file(folder.path() / "records.npy", record(1) + record(2) + bytes + record(3));
  const Ended stopped = folder.run("infer", {"job.ranks=2"});
  INFO(stopped.err);
  CHECK(stopped.code == 1);
  CHECK(stopped.err.find(message) != std::string::npos);
  require_predictions(read_file(folder.path() / "predictions.npy"),
                      predicted(folder, values_of(record(1) + record(2))));
  std::filesystem::remove(folder.path() / "predictions.npy");
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
  CHECK(ended.code == 1);
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

TEST_CASE("sizes that disagree with the checkpoint are refused, and predict applies an engine's run", "[engines]") {
  const EngineFolder folder;
  write_inference(folder);
  write_file(folder.path() / "records.npy", record(1));
  const Ended ended = folder.run("infer", {"infer.features=7"});
  CHECK(ended.code == 2);
  CHECK(ended.err.find("[infer] features = 7, and '") != std::string::npos);
  CHECK(folder.run("infer", {"infer.features=6", "infer.outputs=2"}).code == 0);
  write_file(folder.path() / "bare.ini",
             "[job]\nengine = data_parallel\ntask = infer\n[plugins]\npath = " + std::string(SHARDRUN_EXAMPLE_ENGINES) +
                 "\n[engine]\nhidden = 5\n[infer]\nfrom = records.npy\nto = predictions.npy\n");
  const Ended bare = folder.run("bare");
  CHECK(bare.code == 2);
  CHECK(bare.err.find("set [infer] features and outputs, or a [job] checkpoint") != std::string::npos);
  const Ended predicted =
      run_program(folder.path(), {"predict", "engine", "--from", "records.npy", "--to", "same.npy"});
  INFO(predicted.err);
  CHECK(predicted.code == 0);
  CHECK(read_file(folder.path() / "same.npy") == read_file(folder.path() / "predictions.npy"));
}

TEST_CASE("the job files of the example engines run unchanged", "[engines]") {
  const TemporaryFolder folder;
  const auto run = [&](const std::string& job, std::vector<std::string> settings) {
    settings.emplace_back("plugins.path=" SHARDRUN_EXAMPLE_ENGINES);
    const Ended ended = run_program(folder.path(), with_settings({SHARDRUN_EXAMPLE_JOBS "/engines/" + job}, settings));
    INFO(ended.err);
    CHECK(ended.code == 0);
  };
  run("train.ini", {"train.steps=1"});
  run("infer.ini", {"job.checkpoint=runs/train/weights.safetensors", "infer.to=predictions.npy"});
  CHECK(std::filesystem::file_size(folder / "predictions.npy") > 0);
}

namespace {

template <class Number>
std::string bytes_of_numbers(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

/// The bytes of `count` consecutive elements. Their numbers fit only this type or a wider one.
std::string elements(const std::string& element, int count) {
  const auto all = [&]<class Number>(std::vector<Number> numbers, auto next) {
    for (int i = 0; i < count; ++i) {
      numbers.push_back(static_cast<Number>(next(i)));
    }
    return bytes_of_numbers(numbers);
  };
  return element == "f64"    ? all(std::vector<double>(), [](int i) { return 0.1 * i; })
         : element == "f32"  ? all(std::vector<float>(), [](int i) { return 0.1F * static_cast<float>(i); })
         : element == "f16"  ? all(std::vector<std::uint16_t>(), [](int i) { return 0x3C00 + i; })  // from 1 on
         : element == "bf16" ? all(std::vector<float>(), [](int i) { return static_cast<float>(i) / 128; })
         : element == "i32"  ? all(std::vector<std::int32_t>(), [](int i) { return INT32_MAX - i; })
         : element == "i64"  ? all(std::vector<std::int64_t>(), [](int i) { return INT64_MIN + i; })
                             : all(std::vector<std::uint8_t>(), [](int i) { return 255 - i; });
}

const std::map<std::string, std::string> descr_of = {{"f32", "<f4"}, {"f64", "<f8"}, {"f16", "<f2"}, {"bf16", "<f4"},
                                                     {"i32", "<i4"}, {"i64", "<i8"}, {"u8", "|u1"}};

/// An inference by the engine `echo`.
Ended echo(const std::filesystem::path& folder, const std::string& element, const std::string& shape,
           const std::string& input, const std::vector<std::string>& settings = {}) {
  write_file(folder / "records.npy", input);
  write_file(folder / "echo.ini",
             "[job]\nengine = echo\ntask = infer\nranks = 2\n[plugins]\npath = " SHARDRUN_EXAMPLE_ENGINES
             "\n[engine]\nelement = " +
                 element + "\nshape = " + shape + "\n[infer]\nfrom = records.npy\nto = predictions.npy\n");
  return run_program(folder, with_settings({"echo.ini", "--replace"}, settings));
}

}  // namespace

TEST_CASE("samples of engines have any element type and 0 to 4 dimensions, and so have predictions", "[engines]") {
  struct Sample {
    std::string element;
    std::string shape;
    std::vector<int> extents;
  };
  const Sample sample = GENERATE(values<Sample>({{"f32", "number", {}},
                                                 {"f32", "6", {6}},
                                                 {"f32", "2,3", {2, 3}},
                                                 {"f32", "2,1,3", {2, 1, 3}},
                                                 {"f32", "2,1,3,2", {2, 1, 3, 2}},
                                                 {"f64", "2,3", {2, 3}},
                                                 {"f16", "2,1,3", {2, 1, 3}},
                                                 {"bf16", "number", {}},
                                                 {"i32", "6", {6}},
                                                 {"i64", "2,1,3,2", {2, 1, 3, 2}},
                                                 {"i64", "-1", {5}},
                                                 {"u8", "2,2,3", {2, 2, 3}}}));
  const TemporaryFolder folder;
  std::string dimensions;
  int count = 1;
  for (const int extent : sample.extents) {
    dimensions += (dimensions.empty() ? "" : ", ") + std::to_string(extent);
    count *= extent;
  }
  // One sample, and three.
  const std::string descr = descr_of.at(sample.element);
  const std::string comma = sample.extents.size() == 1 ? "," : "";
  const std::string more = sample.extents.empty() ? "," : ", " + dimensions;
  const std::string stream = array_file(descr, "(" + dimensions + comma + ")", elements(sample.element, count)) +
                             array_file(descr, "(3" + more + ")", elements(sample.element, 3 * count));
  const Ended ended = echo(folder.path(), sample.element, sample.shape, stream);
  INFO(sample.element << " " << sample.shape << ": " << ended.err);
  CHECK(ended.code == 0);
  CHECK(read_file(folder / "predictions.npy") == stream);
}

TEST_CASE("the example of images of any size predicts the mean of each color", "[engines]") {
  const TemporaryFolder folder;
  write_file(folder / "records.npy",
             array_file("|u1", "(1, 2, 3)", std::string("\x01\x02\x03\x03\x04\xff", 6)) +
                 array_file("|u1", "(3, 1, 1, 3)", std::string("\x01\x02\x03\x04\x05\x06\x07\x08\x09", 9)));
  write_file(folder / "job.ini",
             "[job]\nengine = brightness\ntask = infer\nranks = 2\n[plugins]\npath = " SHARDRUN_EXAMPLE_ENGINES
             "\n[infer]\nfrom = records.npy\nto = predictions.npy\n");
  const Ended ended = run_program(folder.path(), {"job.ini"});
  INFO(ended.err);
  CHECK(ended.code == 0);
  CHECK(read_file(folder / "predictions.npy") ==
        array_file("<f4", "(3,)", bytes_of_numbers<float>({2, 3, 129})) +
            array_file("<f4", "(3, 3)", bytes_of_numbers<float>({1, 2, 3, 4, 5, 6, 7, 8, 9})));
}

TEST_CASE("records become the samples' type, or are refused with what that type lacks", "[engines]") {
  const TemporaryFolder folder;
  const auto predicted_as = [&](const std::string& element, const std::string& input) {
    const Ended ended = echo(folder.path(), element, "2", input);
    INFO(ended.err);
    CHECK(ended.code == 0);
    return read_file(folder / "predictions.npy");
  };
  const std::string bytes = array_file("|u1", "(2,)", "\x01\xff");
  CHECK(predicted_as("f32", bytes) == array_file("<f4", "(2,)", bytes_of_numbers<float>({1, 255})));
  CHECK(predicted_as("i64", bytes) == array_file("<i8", "(2,)", bytes_of_numbers<std::int64_t>({1, 255})));
  CHECK(predicted_as("f32", array_file("<f8", "(2,)", bytes_of_numbers<double>({0.1, 1e-60}))) ==
        array_file("<f4", "(2,)", bytes_of_numbers<float>({0.1F, 0})));
  CHECK(predicted_as("bf16", array_file("<f4", "(2,)", bytes_of_numbers<float>({1.00390625F, 1.01171875F}))) ==
        array_file("<f4", "(2,)", bytes_of_numbers<float>({1, 1.015625F})));  // ties to even

  const auto refused_as = [&](const std::string& element, const std::string& input, const std::string& why) {
    const Ended ended = echo(folder.path(), element, "2", input);
    INFO(ended.err);
    CHECK(ended.code == 1);
    CHECK(ended.err.find("record 1") != std::string::npos);
    CHECK(ended.err.find(why) != std::string::npos);
  };
  refused_as("u8", array_file("<i4", "(2,)", bytes_of_numbers<std::int32_t>({255, 256})),
             "its element 1 (counted from 0) is 256, which u8 cannot hold");
  refused_as("i64", array_file("<u8", "(2,)", bytes_of_numbers<std::uint64_t>({0, UINT64_MAX})),
             "is 18446744073709551615, which i64 cannot hold");
  refused_as("u8", array_file("<f4", "(2,)", bytes_of_numbers<float>({1, 2})),
             "it is float32, and u8 numbers are needed: save array.astype('uint8')");
  refused_as("f16", array_file("<f4", "(2,)", bytes_of_numbers<float>({1, 70000})),
             "its element 1 (counted from 0) is 70000, which f16 cannot hold");
  refused_as("f32", array_file("<f4", "(2, 3)", std::string(24, '\0')),
             "its shape is [2, 3], expected [2] or [samples, 2]");
  // An engine that only infers cannot be trained.
  write_file(folder / "x.npy", array_file("<f4", "(2, 2)", std::string(16, '\0')));
  write_file(folder / "train.ini", "[job]\nengine = echo\n[plugins]\npath = " SHARDRUN_EXAMPLE_ENGINES
                                   "\n[data]\narrays = x.npy, x.npy\n[train]\nsteps = 1\n");
  const Ended trained = run_program(folder.path(), {"train.ini"});
  CHECK(trained.code == 2);
  CHECK(trained.err.find("engine 'echo' infers alone, and is not trained: set [job] task = infer") !=
        std::string::npos);
}
