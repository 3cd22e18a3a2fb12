#include "core/data/dataset.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <limits>

#include "core/run/run.h"
#include "core/workload/model.h"
#include "tests/support/catch.h"
#include "tests/support/compiled_job.h"
#include "tests/support/errors.h"
#include "tests/support/npy.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Contains;
using Catch::StartsWith;

namespace {

constexpr const char* arrays_job =
    "[model]\nname = mlp\nhidden = 4\n[data]\narrays = x.npy, y.npy\nsplit = 0.75\nbatch = 2\n[train]\nsteps = 1\n";

std::string refusal(const job::Job& job) {
  return error_of([&] { static_cast<void>(compile::compile(job)); });
}

}  // namespace

TEST_CASE("a text data set reports its tokens, windows and characters", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "corpus.txt", "abcdabcdabcdabcdabcdabcdabcdabcdabcdabcd");
  const auto dataset = data::open_dataset(job_in(folder, text_job, {"model.context=3", "data.split=0.75"}));
  CHECK(data::batch_notice(*dataset, 1000).empty());
  CHECK(dataset->shape().vocab == 4);
  CHECK(dataset->tokens_per_sample() == 3);
  CHECK(dataset->evaluation_samples() == 3);
  for (const auto& [most, evaluated] : {std::pair("2", 2), {"3", 3}, {"4", 3}}) {
    CHECK(data::open_dataset(job_in(folder, text_job,
                                    {"model.context=3", "data.split=0.75", std::string("data.eval_samples=") + most}))
              ->evaluation_samples() == evaluated);
  }
  REQUIRE(dataset->tokenizer() != nullptr);
  CHECK(dataset->tokenizer()->kind() == data::TokenizerKind::character);
  CHECK(dataset->describe() == (folder / "corpus.txt").string() + ": 30 training and 10 validation tokens, 4 distinct");
}

TEST_CASE("split = 1 trains on all data", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "corpus.txt", sentences(300));
  const std::string_view without_evaluation = text_job.substr(0, text_job.find("eval_every"));
  CHECK(data::open_dataset(job_in(folder, without_evaluation, {"data.split=1"}))->evaluation_samples() == 0);
}

TEST_CASE("an array data set reports its features, targets and classes", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "x.npy", npy_file<float>("<f4", "(4, 2)", {0, 1, 2, 3, 4, 5, 6, 7}));
  write_file(folder / "y.npy", npy_file<float>("<f4", "(4, 3)", {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  const auto reals = data::open_dataset(job_in(folder, arrays_job));
  CHECK(reals->shape().features == 2);
  CHECK(reals->shape().outputs == 3);
  CHECK(reals->shape().vocab == 0);
  CHECK(reals->evaluation_samples() == 1);
  CHECK(reals->tokens_per_sample() == 1);
  CHECK(reals->tokenizer() == nullptr);
  CHECK(data::batch_notice(*reals, 3).empty());
  CHECK(data::batch_notice(*reals, 4) ==
        "[data] batch = 4 is more than the 3 training samples: a step takes some of them more than once");

  write_file(folder / "y.npy", npy_file<std::int64_t>("<i8", "(4,)", {0, 5, 2, 1}));
  const auto labels = data::open_dataset(job_in(folder, arrays_job));
  CHECK(labels->shape().outputs == 0);
  CHECK(labels->shape().vocab == 6);
}

TEST_CASE("both devices get the same rows, any number at once", "[data]") {
  const TemporaryFolder folder;
  std::string x;
  std::string y;
  for (int row = 0; row < 200; ++row) {
    x += bytes_of<float>({static_cast<float>(row), static_cast<float>(-row)});
    y += bytes_of<float>({static_cast<float>(10 * row)});
  }
  write_file(folder / "x.npy", npy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (200, 2), }", x));
  write_file(folder / "y.npy", npy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (200, 1), }", y));
  const auto dataset = data::open_dataset(job_in(folder, arrays_job));
  const auto view = [](auto* data, std::int64_t rows, std::int64_t columns) {
    const bool is_wide = sizeof(*data) == sizeof(double);
    device::TensorView view{.data = data, .dtype = is_wide ? graph::DType::f64 : graph::DType::f32, .rank = 2};
    view.shape = view.global = {rows, columns};
    return view;
  };
  std::vector<float> narrow(2 * 150);
  std::vector<float> narrow_targets(150);
  std::vector<double> wide(2 * 150);
  std::vector<double> wide_targets(150);

  dataset->fill_training(7, 30, view(narrow.data(), 150, 2), view(narrow_targets.data(), 150, 1));
  dataset->fill_training(7, 30, view(wide.data(), 150, 2), view(wide_targets.data(), 150, 1));

  CHECK(std::vector<double>(narrow.begin(), narrow.end()) == wide);
  CHECK(std::vector<double>(narrow_targets.begin(), narrow_targets.end()) == wide_targets);
  std::vector<bool> seen(150, false);
  for (std::size_t row = 0; row < 150; ++row) {
    CHECK(narrow[2 * row + 1] == -narrow[2 * row]);
    CHECK(narrow_targets[row] == 10 * narrow[2 * row]);
    seen.at(static_cast<std::size_t>(narrow[2 * row])) = true;
  }
  // Rows 120 to 149 of this epoch and the first of the next: at least 120 different ones, all of the training part.
  CHECK(std::count(seen.begin(), seen.end(), true) >= 120);

  dataset->fill_evaluation(5, view(narrow.data(), 40, 2), view(narrow_targets.data(), 40, 1));
  CHECK(narrow[0] == 155);
  CHECK(narrow_targets[39] == 1940);
}

TEST_CASE("data that does not suit the model is refused", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "corpus.txt", sentences(300));
  write_file(folder / "x.npy", npy_file<float>("<f4", "(4, 1)", {0, 1, 2, 3}));
  write_file(folder / "y.npy", npy_file<float>("<f4", "(4, 1)", {0, 1, 2, 3}));
  write_file(folder / "train.bin", bytes_of<std::uint16_t>({1, 2, 3, 4, 5, 6, 7, 8}));
  const std::string at = "2: " + (folder / "job.ini").string();

  CHECK(refusal(job_in(folder, "[model]\nname = mlp\nhidden = 4\n[data]\ntext = corpus.txt\n[train]\nsteps = 1\n")) ==
        at + ":2: model mlp is not trained on tokens: use [data] arrays");
  CHECK(refusal(
            job_in(folder,
                   "[model]\nname = gpt\nlayers = 1\nheads = 1\nwidth = 2\ncontext = 2\n[data]\narrays = x.npy, y.npy\n"
                   "[train]\nsteps = 1\n")) == at + ":8: model gpt is trained on tokens: use [data] text or tokens");
  CHECK(refusal(job_in(folder, "[model]\nname = mlp\nhidden = 4\n[data]\narrays = x.npy\n[train]\nsteps = 1\n")) ==
        at + ":5: [data] arrays needs two arrays, inputs and targets (x.npy, y.npy); found 1");
  CHECK(
      refusal(job_in(folder,
                     "[model]\nname = gpt\nlayers = 1\nheads = 1\nwidth = 2\ncontext = 2\n[data]\ntokens = train.bin\n"
                     "[train]\nsteps = 1\n")) ==
      at +
          ":8: [model] vocab is needed with [data] tokens: set it to the vocabulary that the tokens were made with; it "
          "is more than the highest token");
  CHECK(refusal(job_in(folder, text_job, {"model.context=400"}))
            .find(at + ":11: [data] text: the training part of '" + (folder / "corpus.txt").string() + "' has ") == 0);
  CHECK(refusal(job_in(folder, text_job, {"model.width=15"}))
            .find(at + ":7: [model] heads = 2 does not divide width = 15") == 0);
  CHECK(refusal(job_in(folder,
                       "[model]\nname = gpt\nlayers = 1\nheads = 1\nwidth = 2\ncontext = 2\n[train]\nsteps = 1\n")) ==
        at + ": [data] is missing: set text, tokens or arrays; [model] vocab is enough for a plan");
}

TEST_CASE("a validation text is read with the tokenizer of the training text", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "corpus.txt", "abcdabcdabcdabcdabcdabcdabcdabcdabcdabcd");
  write_file(folder / "val.txt", "ddddccccbbbb");
  const std::vector<std::string> settings = {"model.context=3",
                                             "data.validation_text=" + (folder / "val.txt").string()};
  const auto dataset = data::open_dataset(job_in(folder, text_job, settings));

  CHECK(dataset->shape().vocab == 4);
  CHECK(dataset->evaluation_samples() == 3);
  CHECK(dataset->describe() == (folder / "corpus.txt").string() + ": 40 training tokens, " +
                                   (folder / "val.txt").string() + ": 12 validation tokens, 4 distinct");
  dataset->load();
  std::vector<std::int32_t> inputs(9);
  std::vector<std::int32_t> targets(9);
  const auto view = [](std::vector<std::int32_t>& of) {
    device::TensorView view{.data = of.data(), .dtype = graph::DType::i32, .rank = 2};
    view.shape = view.global = {3, 3};
    return view;
  };
  dataset->fill_evaluation(0, view(inputs), view(targets));
  CHECK(inputs == std::vector<std::int32_t>{3, 3, 3, 3, 2, 2, 2, 2, 1});
  CHECK(targets == std::vector<std::int32_t>{3, 3, 3, 2, 2, 2, 2, 1, 1});

  write_file(folder / "val.txt", "dddd\nccxc");
  CHECK_THAT(
      refusal(job_in(folder, text_job, settings)),
      Contains("--set data.validation_text: [data] validation_text: '" + (folder / "val.txt").string() +
               "': cannot encode U+000A at byte 4 (line 1): it is none of the 4 characters of the training text"));
  write_file(folder / "val.txt", "dd");
  CHECK_THAT(refusal(job_in(folder, text_job, settings)), Contains("val.txt' has 2 tokens, a context of 3 needs"));
}

TEST_CASE("validation tokens are checked as training tokens are", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "train.bin", bytes_of<std::uint16_t>({1, 2, 3, 4, 5, 6, 7, 8}));
  write_file(folder / "val.bin", bytes_of<std::uint16_t>({8, 7, 6, 9, 5}));
  const std::string text =
      "[model]\nname = gpt\nlayers = 1\nheads = 1\nwidth = 2\ncontext = 2\nvocab = 9\n"
      "[data]\ntokens = train.bin\nvalidation_tokens = val.bin\n[train]\nsteps = 1\n";
  const auto dataset = data::open_dataset(job_in(folder, text));

  CHECK(dataset->evaluation_samples() == 2);
  CHECK(dataset->describe() == (folder / "train.bin").string() + ": 8 training tokens, " +
                                   (folder / "val.bin").string() + ": 5 validation tokens of uint16, vocabulary 9");
  CHECK_THAT(error_of([&] { dataset->check(1); }),
             StartsWith("2: " + (folder / "job.ini").string() + ":10: [data] validation_tokens: '") &&
                 Contains("val.bin': token 9 at position 3 is not below the model's vocabulary of 9"));
  CHECK_THAT(
      error_of([&] { data::open_dataset(job_in(folder, text, {"model.vocab=8"}))->check(1); }),
      StartsWith("2: " + (folder / "job.ini").string() + ":9: [data] tokens: '") && Contains("token 8 at position 7"));
}

TEST_CASE("token files of another width than the default are refused, unless the job names the default", "[data]") {
  const TemporaryFolder folder;
  std::string narrow;
  std::string wide;
  for (std::uint32_t i = 0; i < 100; ++i) {
    narrow += bytes_of<std::uint16_t>({static_cast<std::uint16_t>(i % 9)});
    wide += bytes_of<std::uint32_t>({i % 9});
  }
  write_file(folder / "narrow.bin", narrow);
  write_file(folder / "wide.bin", wide);
  const auto opened = [&](const std::string& data) {
    const std::string model = "[model]\nname = gpt\nlayers = 1\nheads = 1\nwidth = 2\ncontext = 2\nvocab = 9\n";
    const job::Job job = job_in(folder, model + "[data]\n" + data + "[train]\nsteps = 1\n");
    std::string description;
    const std::string refused = error_of([&] { description = data::open_dataset(job)->describe(); });
    return refused == "nothing" ? description : refused;
  };
  const std::string job = (folder / "job.ini").string();

  CHECK_THAT(opened("tokens = wide.bin\n"), StartsWith("2: " + job + ":9: [data] tokens: '") &&
                                                Contains("wide.bin' looks as if its tokens had 4 bytes each"));
  CHECK_THAT(opened("tokens = narrow.bin\nvalidation_tokens = wide.bin\n"),
             StartsWith("2: " + job + ":10: [data] validation_tokens: '") &&
                 Contains("wide.bin' looks as if its tokens had 4 bytes each"));
  CHECK(opened("tokens = wide.bin\ntoken_type = uint32\nsplit = 0.75\n") ==
        (folder / "wide.bin").string() + ": 75 training and 25 validation tokens of uint32, vocabulary 9");
  CHECK(opened("tokens = wide.bin\ntoken_type = uint16\nsplit = 0.75\n") ==
        (folder / "wide.bin").string() + ": 150 training and 50 validation tokens of uint16, vocabulary 9");
}

TEST_CASE("validation arrays are evaluated from their first row", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "x.npy", npy_file<float>("<f4", "(4, 1)", {0, 1, 2, 3}));
  write_file(folder / "y.npy", npy_file<std::int32_t>("<i4", "(4,)", {0, 1, 2, 1}));
  write_file(folder / "vx.npy", npy_file<float>("<f4", "(2, 1)", {7, 8}));
  write_file(folder / "vy.npy", npy_file<std::int32_t>("<i4", "(2,)", {3, 0}));
  const std::string text =
      "[model]\nname = mlp\nhidden = 4\nloss = cross_entropy\n[data]\narrays = x.npy, y.npy\n"
      "validation_arrays = vx.npy, vy.npy\nbatch = 2\n[train]\nsteps = 1\n";
  const auto dataset = data::open_dataset(job_in(folder, text));

  CHECK(dataset->shape().vocab == 4);
  CHECK(dataset->evaluation_samples() == 2);
  CHECK(data::open_dataset(job_in(folder, text, {"data.eval_samples=1"}))->evaluation_samples() == 1);
  std::vector<float> inputs(2);
  std::vector<std::int32_t> targets(2);
  device::TensorView x{.data = inputs.data(), .rank = 2};
  x.shape = x.global = {2, 1};
  device::TensorView y{.data = targets.data(), .dtype = graph::DType::i32, .rank = 1};
  y.shape = y.global = {2};
  dataset->fill_evaluation(0, x, y);
  CHECK(inputs == std::vector<float>{7, 8});
  CHECK(targets == std::vector<std::int32_t>{3, 0});

  write_file(folder / "vx.npy", npy_file<float>("<f4", "(2, 2)", {7, 8, 9, 9}));
  CHECK_THAT(refusal(job_in(folder, text)),
             Contains(":7: [data] validation_arrays: a row of '") && Contains("has 2 features and labels, one of '"));
}

TEST_CASE("a run asked to stop while it compiles reads no data", "[data]") {
  const TemporaryFolder folder;
  const float bad = std::numeric_limits<float>::quiet_NaN();
  write_file(folder / "x.npy", npy_file<float>("<f4", "(4, 2)", {0, 1, 2, 3, 4, bad, 6, 7}));
  write_file(folder / "y.npy", npy_file<float>("<f4", "(4, 1)", {0, 1, 2, 3}));
  const job::Job job = job_in(folder, arrays_job, {"job.output=run"});
  std::string screen;
  run::RunSettings settings;
  settings.progress = {.write = [&](std::string_view text) { screen += text; },
                       .is_terminal = false,
                       .width = {},
                       .now = [] { return std::chrono::steady_clock::now(); },
                       .is_behind = {}};
  settings.stop_signal = [] { return SIGINT; };
  settings.on_stop = [](const std::function<void(int)>& listener) {
    if (listener) {
      listener(SIGINT);
    }
  };

  const metrics::Summary summary = run::run_job(job, settings);

  CHECK(summary.status == "stopped");
  CHECK(summary.exit_code == 128 + SIGINT);
  CHECK_FALSE(std::filesystem::exists(job.output));
  CHECK(screen == "stopping (Ctrl-C again ends it now)\n");
}

TEST_CASE("NaN in the data is found when the data is read through", "[data]") {
  const TemporaryFolder folder;
  const float bad = std::numeric_limits<float>::quiet_NaN();
  write_file(folder / "x.npy", npy_file<float>("<f4", "(4, 2)", {0, 1, 2, 3, 4, bad, 6, 7}));
  write_file(folder / "y.npy", npy_file<float>("<f4", "(4, 1)", {0, 1, 2, 3}));
  const std::string at = "2: " + (folder / "job.ini").string() + ":5: [data] arrays: '" + folder.path().string();

  CHECK_THAT(error_of([&] { data::open_dataset(job_in(folder, arrays_job))->check(2); }),
             StartsWith(at + "/x.npy' has NaN in row 2, column 1"));
  // A run reports that before it writes anything.
  const job::Job job = job_in(folder, arrays_job, {"job.output=run"});
  CHECK_THAT(
      error_of([&] { static_cast<void>(run::run_job(job, {.progress = screen::descriptor_sink(-1, nullptr)})); }),
      StartsWith(at + "/x.npy' has NaN"));
  CHECK_FALSE(std::filesystem::exists(job.output));
  CHECK(refusal(job) == "nothing");  // a plan reads no more than it needs

  write_file(folder / "x.npy", npy_file<float>("<f4", "(4, 2)", {0, 1, 2, 3, 4, 5, 6, 7}));
  write_file(folder / "y.npy", npy_file<float>("<f4", "(4, 1)", {0, 1, 2, -std::numeric_limits<float>::infinity()}));
  CHECK_THAT(error_of([&] { data::open_dataset(job_in(folder, arrays_job))->check(2); }),
             StartsWith(at + "/y.npy' has -Inf in row 3, column 0"));
}

TEST_CASE("data that cannot be read is reported as the user's error, whatever the reason", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "file", "x");
  std::filesystem::create_symlink(folder / "loop", folder / "loop");
  for (const std::string& path : {(folder / "gone").string(), (folder / "file/below").string(), folder.path().string(),
                                  (folder / "loop").string(), std::string("/proc/self/mem"), std::string(300, 'n')}) {
    CHECK_THAT(refusal(job_in(folder, text_job, {"data.text=" + path})),
               StartsWith("2: --set data.text: [data] text: cannot read '"));
  }
  write_file(folder / "x.npz", "PK\x03\x04 and so on");
  CHECK_THAT(refusal(job_in(folder, arrays_job,
                            {"data.arrays=" + (folder / "x.npz").string() + "," + (folder / "x.npz").string()})),
             StartsWith("2: --set data.arrays: [data] arrays: cannot read array '") &&
                 Contains("it is a zip archive of arrays, as numpy.savez (.npz)") && Contains("numpy.save("));
}

namespace {

/// The error of filling one training row with tokens; "nothing" if there is none.
std::string filled(const data::Dataset& dataset, std::int64_t context) {
  std::vector<std::int32_t> inputs(static_cast<std::size_t>(context));
  std::vector<std::int32_t> targets(inputs.size());
  const auto view = [&](std::vector<std::int32_t>& of) {
    device::TensorView view{.data = of.data(), .dtype = graph::DType::i32, .rank = 2};
    view.shape = view.global = {1, context};
    return view;
  };
  return error_of([&] { dataset.fill_training(1, 0, view(inputs), view(targets)); });
}

}  // namespace

TEST_CASE("a token file that changes is refused at the next batch, with the setting that names it", "[data]") {
  const TemporaryFolder folder;
  const std::string text =
      "[model]\nname = gpt\nlayers = 1\nheads = 1\nwidth = 2\ncontext = 2\nvocab = 9\n"
      "[data]\ntokens = train.bin\nsplit = 1\n[train]\nsteps = 1\n";
  write_file(folder / "train.bin", bytes_of<std::uint16_t>({1, 2, 3, 4, 5, 6, 7, 8}));
  const auto dataset = data::open_dataset(job_in(folder, text));
  CHECK(filled(*dataset, 2) == "nothing");

  write_file(folder / "train.bin", bytes_of<std::uint16_t>({1, 2, 3, 4, 5, 6, 7, 7}));
  CHECK_THAT(filled(*dataset, 2), StartsWith("1: " + (folder / "job.ini").string() + ":9: [data] tokens: '") &&
                                      Contains("train.bin' changed while this job was using it"));
  std::filesystem::resize_file(folder / "train.bin", 0);
  CHECK_THAT(filled(*dataset, 2), Contains("it had 16 bytes and has 0 now"));
}

TEST_CASE("another process gets the same tokens of a text, even if the file changes", "[data]") {
  const TemporaryFolder folder;
  const job::Job job = text_job_in(folder);
  const auto dataset = data::open_dataset(job);
  CHECK(dataset->bytes_to_load() == dataset->host_bytes());
  CHECK(dataset->host_bytes() > 4000);
  dataset->load();
  CHECK(dataset->bytes_to_load() == 0);
  write_file(folder / "corpus.txt", "something else");

  const auto attached = data::attach_dataset(job, data::handles_of(*dataset));

  REQUIRE(attached != nullptr);
  CHECK(attached->describe() == dataset->describe());
  CHECK(*attached->tokenizer() == *dataset->tokenizer());
  CHECK(attached->fingerprints() == dataset->fingerprints());
  CHECK(attached->host_bytes() == dataset->host_bytes());
  CHECK(filled(*attached, 16) == "nothing");
  std::string gone = data::handles_of(*dataset).front();
  gone.replace(0, gone.find('.'), "999999999");
  CHECK(data::attach_dataset(job, {gone}) == nullptr);
}

TEST_CASE("another process gets the same array files by their descriptors", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "x.npy", npy_file<float>("<f4", "(4, 1)", {0, 1, 2, 3}));
  write_file(folder / "y.npy", npy_file<float>("<f4", "(4, 1)", {0, 1, 2, 3}));
  const job::Job job = job_in(folder, arrays_job);
  const auto dataset = data::open_dataset(job);
  const std::vector<std::string> handles = data::handles_of(*dataset);
  CHECK(dataset->host_bytes() == 0);

  std::filesystem::rename(folder / "x.npy", folder / "away.npy");
  CHECK(data::attach_dataset(job, handles)->fingerprints() == dataset->fingerprints());
  std::filesystem::resize_file(folder / "away.npy", 64);
  CHECK_THAT(error_of([&] { (void)data::attach_dataset(job, handles); }), Contains("x.npy' changed while"));
}
