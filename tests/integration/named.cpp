// Jobs that are split as [sharding] says, run by real ranks.

#include <cmath>
#include <cstring>
#include <fmt/format.h>

#include "core/checkpoint/safetensors.h"
#include "tests/integration/program.h"
#include "tests/support/catch.h"
#include "tests/support/npy.h"
#include "tests/support/text_job.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
namespace json = boost::json;

namespace {

constexpr int rows = 7;
constexpr int columns = 5;
constexpr int steps = 100;

const std::string heat = fmt::format(
    "[job]\ntask = iterate\noutput = run\nthreads = 1\nstrategy = named\n[model]\nname = heat2d\nrows = {}\ncolumns = "
    "{}\nboundary = fixed\nwall = 0.375\nbump = 0.2\n[iterate]\nsteps = {}\n",
    rows, columns, steps);

/// The same arithmetic on one array.
std::vector<float> heat_serially() {
  std::vector<float> u;
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < columns; ++j) {
      const double x = ((i + 0.5) / rows - 0.5) / 0.2;
      const double y = ((j + 0.5) / columns - 0.5) / 0.2;
      u.push_back(static_cast<float>(std::exp(-0.5 * (y * y + x * x))));
    }
  }
  const auto at = [&](int i, int j) {
    return i < 0 || i >= rows || j < 0 || j >= columns ? 0.375F : u[static_cast<std::size_t>(i * columns + j)];
  };
  std::vector<float> next(u.size());
  for (int step = 0; step < steps; ++step) {
    for (int i = 0; i < rows; ++i) {
      for (int j = 0; j < columns; ++j) {
        next[static_cast<std::size_t>(i * columns + j)] = 0.5F * at(i, j) + 0.125F * at(i - 1, j) +
                                                          0.125F * at(i + 1, j) + 0.125F * at(i, j - 1) +
                                                          0.125F * at(i, j + 1);
      }
    }
    u.swap(next);
  }
  return u;
}

std::vector<float> state(const std::filesystem::path& folder, const char* name) {
  const shardrun::checkpoint::SafetensorsFile file(folder / "run/state.safetensors");
  const std::span<const std::byte> bytes = file.at(name).bytes;
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

json::object plan_of(const std::filesystem::path& folder, const std::string& file) {
  const Ended ended = run_program(folder, {"plan", file, "--json"});
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  return json::parse(ended.out).as_object();
}

/// Checks that the job's ranks report the bytes that the plan says they send in a step.
void check_sent(const std::filesystem::path& folder, const std::string& file) {
  const json::object summary = read_json(folder / "run/summary.json");
  const json::object plan = plan_of(folder, file);
  for (const json::value& alike : plan.at("ranks").as_array()) {
    for (const json::value& member : alike.at("members").as_array()) {
      CHECK(summary.at("ranks").as_array().at(member.to_number<std::size_t>()).at("sent_bytes") ==
            alike.at("sent_bytes"));
    }
  }
}

/// The message with which a job is refused before anything starts.
std::string refusal(const std::filesystem::path& folder, const std::string& text) {
  write_file(folder / "bad.ini", text);
  const Ended ended = run_program(folder, {"bad.ini"});
  CHECK(ended.code == 2);
  CHECK(ended.out.empty());
  return ended.err;
}

void check_verified(const std::filesystem::path& folder, const std::string& text) {
  write_file(folder / "job.ini", text);
  const Ended ended = run_program(folder, {"verify", "job.ini", "--steps", "2", "--json"});
  INFO(text << ended.err << ended.out);
  REQUIRE(ended.code == 0);
  CHECK(json::parse(ended.out).at("passed").as_bool());
}

/// The text job with more lines in [job], and sections after it.
std::string text_job_with(const std::string& job_lines, const std::string& sections) {
  std::string text(text_job);
  text.insert(text.find("[model]"), job_lines);
  return text + sections;
}

}  // namespace

TEST_CASE("heat on a rectangle over real ranks equals the serial loop bit for bit, and sends its halos", "[named]") {
  const std::vector<float> expected = heat_serially();
  struct Split {
    const char* name;
    const char* ranks;
    const char* sections;
  };
  for (const std::string& transport : installed("transport")) {
    for (const Split& split :
         {Split{"rows", "2", "[sharding]\nx = space\n"}, Split{"columns", "3", "[sharding]\ny = space\n"},
          Split{"both", "4", "[mesh]\na = 2\nb = 2\n[sharding]\ntemperature = b | a\n"}}) {
      DYNAMIC_SECTION(split.name << " of " << split.ranks << " over " << transport) {
        const TemporaryFolder folder;
        std::string text = heat + split.sections;
        text.insert(text.find("[model]"), "transport = " + transport + "\nranks = " + split.ranks + "\n");
        write_file(folder / "job.ini", text);

        const Ended ended = run_program(folder.path(), {"job.ini"});

        INFO(ended.err);
        REQUIRE(ended.code == 0);
        CHECK(ended.err.empty());
        CHECK_THAT(ended.out, Contains(fmt::format("step {}/{}", steps, steps)));
        CHECK(state(folder.path(), "temperature") == expected);
        CHECK(read_json_lines(folder / "run/metrics.jsonl").size() == steps);
        CHECK(read_json(folder / "run/summary.json").at("status") == "finished");
        check_sent(folder.path(), "job.ini");
      }
    }
  }
}

TEST_CASE("model sin over real ranks has the same bits as on one rank", "[named]") {
  const TemporaryFolder folder;
  const std::string text =
      "[job]\ntask = iterate\noutput = run\nthreads = 1\nstrategy = named\n[model]\nname = sin\ncells = "
      "11\n[sharding]\nx = space\n[iterate]\nsteps = 5\n";
  write_file(folder / "job.ini", text);
  REQUIRE(run_program(folder.path(), {"job.ini"}).code == 0);
  const std::vector<float> x = state(folder.path(), "x");
  const std::vector<float> y = state(folder.path(), "y");
  REQUIRE(x.size() == 11);
  REQUIRE(run_program(folder.path(), {"job.ini", "--set", "job.ranks=3"}).code == 0);
  CHECK(state(folder.path(), "x") == x);
  CHECK(state(folder.path(), "y") == y);
}

TEST_CASE("splits by name give the same plans as dp and tp", "[named]") {
  const TemporaryFolder folder;
  write_file(folder / "corpus.txt", sentences(20000));
  const auto programs = [&](const std::string& job_lines, const std::string& sections) {
    write_file(folder / "job.ini", text_job_with(job_lines, sections));
    return plan_of(folder.path(), "job.ini");
  };
  CHECK(programs("ranks = 3\nstrategy = named\n", "[sharding]\nbatch = data\n") ==
        programs("ranks = 3\nstrategy = dp\n", ""));
  CHECK(programs("ranks = 2\nstrategy = named\n",
                 "[strategy]\nbucket_mb = 0\n[sharding]\nheads = model\nmlp = model\nvocab = model\n") ==
        programs("ranks = 2\nstrategy = tp\n", ""));
  CHECK(programs("ranks = 2\nstrategy = named\n",
                 "[strategy]\nbucket_mb = 0\n[sharding]\nheads = model\nmlp = model\nvocab = model\nlayer.*/*residual "
                 "= - | model "
                 "| -\nembedding/* @use = - | -\n") != programs("ranks = 2\nstrategy = tp\n", ""));
}

TEST_CASE("splits by name agree with the reference", "[named]") {
  const TemporaryFolder folder;
  write_file(folder / "corpus.txt", sentences(20000));
  for (const auto& [job_lines, sections] : std::vector<std::pair<std::string, std::string>>{
           {"ranks = 2\n", "[sharding]\nbatch = data\n"},
           {"ranks = 3\n", "[sharding]\nheads = model\nmlp = model\nvocab = model\n"},
           {"ranks = 4\n", "[mesh]\ndata = 2\nmodel = 2\n[sharding]\nbatch = data\nmlp = model,data\nheads = model\n"},
           // The axes that products sum over, and a weight split by both of its dimensions.
           {"ranks = 4\n", "[mesh]\na = 2\nb = 2\n[sharding]\nembed = a\nseq = b\nlayer.*/mlp/up/weights = b | a\n"},
           // Stored whole and updated in parts; stored in parts and used whole; a residual split along the sequence.
           {"ranks = 2\n",
            "[sharding]\nbatch = data\nembedding/* @optimizer = data | -\nlayer.?/mlp/down/weights = - | "
            "data\nlayer.?/mlp/down/weights @use = - | -\n"},
           {"ranks = 2\n", "[sharding]\nheads = model\nmlp = model\nlayer.*residual = - | model | -\n"},
       }) {
    check_verified(folder.path(), text_job_with("strategy = named\n" + job_lines, sections));
  }
}

TEST_CASE("an mlp split by name agrees with the reference", "[named]") {
  const TemporaryFolder folder;
  std::string features;
  std::string outputs;
  for (int sample = 0; sample < 40; ++sample) {
    for (int feature = 0; feature < 5; ++feature) {
      features += bytes_of({static_cast<float>((sample * 7 + feature * 3) % 11) / 11.0F});
    }
    outputs += bytes_of({static_cast<float>(sample % 3)});
  }
  write_file(folder / "x.npy", npy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (40, 5), }", features));
  write_file(folder / "y.npy", npy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (40, 1), }", outputs));
  for (const char* lines : {"batch = data\n", "mlp = data\n", "features = data\nlayer_1/weights = data | -\n"}) {
    check_verified(folder.path(),
                   std::string("[job]\nranks = 3\nthreads = 1\nstrategy = named\n[model]\nname = mlp\nhidden = "
                               "9\n[data]\narrays = x.npy,y.npy\nbatch = 7\n[train]\nsteps = 3\n[sharding]\n") +
                       lines);
  }
}

TEST_CASE("mistakes in [sharding] are reported with their line", "[named]") {
  const TemporaryFolder folder;
  write_file(folder / "corpus.txt", sentences(20000));
  const auto error = [&](const std::string& lines, const std::string& job = "ranks = 2\nstrategy = named\n") {
    return refusal(folder.path(), text_job_with(job, lines));
  };
  const std::string at = "shardrun: strategy 'named': bad.ini:22: [sharding] ";
  CHECK_THAT(error("[sharding]\nbacth = data\n"),
             StartsWith(at + "bacth: the model has no axis, tensor or cut point of that name (did you mean 'batch'?); "
                             "its axes are "));
  CHECK_THAT(error("[sharding]\nlayer.*/mlp/upp/weights = - | data\n"), StartsWith(at + "layer.*/mlp/upp/weights: "));
  CHECK_THAT(error("[sharding]\nembeding/tokens = - | data\n"), Contains("(did you mean 'embedding/tokens'?)"));
  CHECK_THAT(error("[sharding]\nembedding/tokens = data\n"),
             StartsWith(at + "embedding/tokens: embedding/tokens has 2 dimensions [vocab, embed], and 1 are given"));
  CHECK_THAT(error("[sharding]\nbatch = data | -\n"), StartsWith(at + "batch: it is an axis"));
  CHECK_THAT(error("[sharding]\nembedding/* @optimiser = data | -\n"),
             StartsWith(at + "embedding/*: there is no role 'optimiser' (did you mean 'optimizer'?)"));
  CHECK_THAT(error("[sharding]\nembedding/tokens = data | data\n"),
             StartsWith(at + "embedding/tokens: mesh axis 'data' stands there twice"));
  CHECK_THAT(error("[sharding]\nembed = data\nvocab = data\n"),
             StartsWith("shardrun: strategy 'named': bad.ini:23: [sharding] vocab: mesh axis 'data' would split two "
                        "dimensions of embedding/tokens [vocab, embed], this and embed"));
  CHECK_THAT(error("[sharding]\nbatch = data,\n"), StartsWith(at + "batch: 'data,' names no mesh axis where one"));
  CHECK_THAT(error("[sharding]\nbatch = data,model\n"), StartsWith(at + "batch: there are two mesh axes"));
  CHECK_THAT(error("[sharding]\nbatch = dta\n[mesh]\ndata = 2\n"),
             StartsWith(at + "batch: the mesh has no axis 'dta' (did you mean 'data'?); it has data"));
  CHECK_THAT(error(""), StartsWith("shardrun: strategy 'named': nothing is split over the 2 ranks: "));
  CHECK_THAT(error("[sharding]\nbatch = data\n", "ranks = 2\nstrategy = dp\n"),
             StartsWith("shardrun: bad.ini:21: [sharding] has no effect with [job] strategy = dp"));
  // A field has no roles.
  CHECK_THAT(refusal(folder.path(), heat + "[sharding]\ntemperature @optimizer = a | -\n"),
             Contains("temperature is not trained, so it has no roles"));
}
