#include "core/task/dataset.h"

#include <algorithm>

#include "core/models/model.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/npy.h"
#include "tests/unit/task/support.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

constexpr const char* arrays_job =
    "[model]\nname = mlp\nhidden = 4\n[data]\narrays = x.npy, y.npy\nsplit = 0.75\nbatch = 2\n[train]\nsteps = 1\n";

std::string refusal(const job::Job& job) {
  return error_of([&] { static_cast<void>(task::compile(job)); });
}

}  // namespace

TEST_CASE("text says how many tokens, windows and characters there are", "[task]") {
  const TemporaryFolder folder;
  write_file(folder / "corpus.txt", "abcdabcdabcdabcdabcdabcdabcdabcdabcdabcd");
  const auto dataset = task::open_dataset(job_in(folder, text_job, {"model.context=3", "data.split=0.75"}));
  CHECK(dataset->shape().vocab == 4);
  CHECK(dataset->tokens_per_sample() == 3);
  CHECK(dataset->evaluation_samples() == 3);
  REQUIRE(dataset->tokenizer() != nullptr);
  CHECK(dataset->tokenizer()->kind() == data::TokenizerKind::character);
  CHECK(dataset->describe() == (folder / "corpus.txt").string() + ": 30 training and 10 validation tokens, 4 distinct");
}

TEST_CASE("everything is trained on with split = 1", "[task]") {
  const TemporaryFolder folder;
  write_file(folder / "corpus.txt", sentences(300));
  const std::string_view without_evaluation = text_job.substr(0, text_job.find("eval_every"));
  CHECK(task::open_dataset(job_in(folder, without_evaluation, {"data.split=1"}))->evaluation_samples() == 0);
}

TEST_CASE("arrays say how many features, targets and classes there are", "[task]") {
  const TemporaryFolder folder;
  write_file(folder / "x.npy", npy_file<float>("<f4", "(4, 2)", {0, 1, 2, 3, 4, 5, 6, 7}));
  write_file(folder / "y.npy", npy_file<float>("<f4", "(4, 3)", {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  const auto reals = task::open_dataset(job_in(folder, arrays_job));
  CHECK(reals->shape().features == 2);
  CHECK(reals->shape().outputs == 3);
  CHECK(reals->shape().vocab == 0);
  CHECK(reals->evaluation_samples() == 1);
  CHECK(reals->tokens_per_sample() == 1);
  CHECK(reals->tokenizer() == nullptr);

  write_file(folder / "y.npy", npy_file<std::int64_t>("<i8", "(4,)", {0, 5, 2, 1}));
  const auto labels = task::open_dataset(job_in(folder, arrays_job));
  CHECK(labels->shape().outputs == 0);
  CHECK(labels->shape().vocab == 6);
}

TEST_CASE("both devices are given the same rows, however many at once", "[task]") {
  const TemporaryFolder folder;
  std::string x;
  std::string y;
  for (int row = 0; row < 200; ++row) {
    x += bytes_of<float>({static_cast<float>(row), static_cast<float>(-row)});
    y += bytes_of<float>({static_cast<float>(10 * row)});
  }
  write_file(folder / "x.npy", npy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (200, 2), }", x));
  write_file(folder / "y.npy", npy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (200, 1), }", y));
  const auto dataset = task::open_dataset(job_in(folder, arrays_job));
  const auto view = [](void* data, std::int64_t rows, std::int64_t columns) {
    device::TensorView view{.data = data, .rank = 2};
    view.shape = view.global = {rows, columns};
    return view;
  };
  std::vector<float> narrow(2 * 150);
  std::vector<float> narrow_targets(150);
  std::vector<double> wide(2 * 150);
  std::vector<double> wide_targets(150);

  dataset->fill_training(7, 30, view(narrow.data(), 150, 2), view(narrow_targets.data(), 150, 1), sizeof(float));
  dataset->fill_training(7, 30, view(wide.data(), 150, 2), view(wide_targets.data(), 150, 1), sizeof(double));

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

  dataset->fill_evaluation(5, view(narrow.data(), 40, 2), view(narrow_targets.data(), 40, 1), sizeof(float));
  CHECK(narrow[0] == 155);
  CHECK(narrow_targets[39] == 1940);
}

TEST_CASE("data and model that do not go together are refused in words", "[task]") {
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
        at + ":5: training needs two arrays, inputs and targets (x.npy, y.npy); found 1");
  CHECK(
      refusal(job_in(folder,
                     "[model]\nname = gpt\nlayers = 1\nheads = 1\nwidth = 2\ncontext = 2\n[data]\ntokens = train.bin\n"
                     "[train]\nsteps = 1\n")) ==
      at + ":8: [model] vocab is needed with [data] tokens: set it to the number of distinct tokens");
  CHECK(refusal(job_in(folder, text_job, {"model.context=400"})).find("2: ") == 0);
  CHECK(refusal(job_in(folder, text_job, {"model.width=15"}))
            .find(at + ":4: [model] width = 15 is not divisible by heads = 2") == 0);
}
