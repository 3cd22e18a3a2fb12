#include "core/checkpoint/import.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "core/checkpoint/contents.h"
#include "core/checkpoint/folder.h"
#include "core/checkpoint/resume.h"
#include "core/checkpoint/verify.h"
#include "tests/support/catch.h"
#include "tests/support/compiled_job.h"
#include "tests/support/errors.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

namespace {

/// The upper two bytes of 1.5 as float32: it is 1.5 as bf16.
constexpr std::uint16_t one_and_a_half = 0x3fc0;

/// Tensors of bf16 whose elements are all 1.5, for each parameter of a graph.
checkpoint::TensorSource parameters_like(const graph::Graph& graph) {
  checkpoint::TensorSource source;
  source.path = "weights";
  for (const graph::State& state : graph.states) {
    if (state.kind == graph::StateKind::parameter) {
      source.tensors.push_back({state.name, checkpoint::DType::bf16, state.type.shape});
    }
  }
  source.read = [](std::size_t, std::int64_t, std::span<std::byte> to) {
    for (std::size_t i = 0; i < to.size(); i += sizeof(one_and_a_half)) {
      std::memcpy(to.data() + i, &one_and_a_half, sizeof(one_and_a_half));
    }
  };
  return source;
}

struct Importing {
  explicit Importing(const std::vector<std::string>& settings = {})
      : job(text_job_in(folder, settings)), compiled(compile_ready(job)), source(parameters_like(compiled.graph)) {}

  [[nodiscard]] checkpoint::Manifest described(std::int64_t step) const {
    return {.step = step, .samples = step * 7, .run = compile::identity_of(job, compiled)};
  }
  [[nodiscard]] std::filesystem::path run(std::int64_t step) const {
    return checkpoint::import_checkpoint(source, compiled.graph, *compiled.device, described(step), folder / "made");
  }
  [[nodiscard]] std::string error(std::int64_t step = 0) const {
    return error_of([&] { static_cast<void>(run(step)); });
  }
  [[nodiscard]] checkpoint::TensorInfo& tensor(const char* name) { return source.tensors[source.index_of(name)]; }

  TemporaryFolder folder;
  job::Job job;
  compile::Compiled compiled;
  checkpoint::TensorSource source;
};

}  // namespace

TEST_CASE("a job continues from a checkpoint of imported weights", "[checkpoint]") {
  for (const std::vector<std::string>& settings :
       std::vector<std::vector<std::string>>{{}, {"train.precision=mixed"}, {"job.ranks=2", "job.strategy=zero3"}}) {
    const Importing importing(settings);
    const std::filesystem::path made = importing.run(3);
    CHECK(made == importing.folder / "made" / "step-000003");
    CHECK(checkpoint::verify_checkpoint(made).faults.empty());
    const checkpoint::OpenCheckpoint opened(made);
    CHECK((opened.manifest().step == 3 && opened.manifest().samples == 21));
    CHECK(checkpoint::check_resumed(importing.job, opened, opened.manifest().run, importing.compiled.graph,
                                    importing.compiled.partition)
              .empty());
    for (const checkpoint::StoredTensor& tensor : opened.manifest().tensors) {
      const mesh::Box whole{std::vector<std::int64_t>(tensor.shape.size(), 0), tensor.shape, {}};
      std::vector<float> values(static_cast<std::size_t>(whole.elements()));
      REQUIRE(tensor.dtype == checkpoint::DType::f32);
      opened.read(tensor, whole, std::as_writable_bytes(std::span(values)));
      const float expected = tensor.role == checkpoint::TensorRole::parameter ? 1.5F : 0.0F;
      CHECK(std::ranges::count(values, expected) == whole.elements());
    }
  }
}

TEST_CASE("an import is refused if the folder has a checkpoint of the same or a later step", "[checkpoint]") {
  const Importing importing;
  static_cast<void>(importing.run(3));
  CHECK_THAT(importing.error(3), Contains("made' has a checkpoint of step 3 already"));
  CHECK_THAT(importing.error(2), Contains("made' has a checkpoint of step 3 already"));
  CHECK(importing.error(4) == "nothing");
}

TEST_CASE("every difference between weights and a job is named", "[checkpoint]") {
  Importing importing;
  importing.tensor("layer.0/mlp/up/weights").shape = {64, 16};
  importing.tensor("layer.1/mlp/up/weights").dtype = checkpoint::DType::i32;
  importing.tensor("final_norm/gain").name = "norm";
  const std::string error = importing.error();
  CHECK_THAT(error, StartsWith("2: 'weights' does not have the tensors of the job:\n  "));
  CHECK_THAT(error, Contains("\n  layer.0/mlp/up/weights is [64, 16], and the job has it as [16, 64]") &&
                        Contains("\n  layer.1/mlp/up/weights is I32, and the job has it as F32") &&
                        Contains("\n  final_norm/gain is missing: [16]") &&
                        Contains("\n  the job has no tensor norm [16]"));
  CHECK(std::ranges::count(error, '\n') == 4);
  CHECK(checkpoint::list_checkpoints(importing.folder / "made").empty());
}

TEST_CASE("an import refuses weights in an unfinished checkpoint and does not remove it", "[checkpoint]") {
  Importing importing;
  const std::filesystem::path unfinished = checkpoint::unfinished_path(importing.folder / "made", 7);
  std::filesystem::create_directories(unfinished);
  write_file(unfinished / "w.safetensors", "read");
  importing.source.files = {unfinished / "w.safetensors"};
  CHECK_THAT(importing.error(), Contains("lies in a checkpoint that was never complete"));
  CHECK(read_file(unfinished / "w.safetensors") == "read");
}

TEST_CASE("an import refuses numbers that a job could not compute with, with their place", "[checkpoint]") {
  Importing importing;
  double value = 0;
  importing.tensor("final_norm/gain").dtype = checkpoint::DType::f64;
  const std::size_t gain = importing.source.index_of("final_norm/gain");
  importing.source.read = [&value, gain, ones = importing.source.read](std::size_t tensor, std::int64_t first,
                                                                       std::span<std::byte> to) {
    if (tensor != gain) {
      return ones(tensor, first, to);
    }
    std::ranges::fill(to, std::byte{0});
    std::memcpy(to.data() + 3 * sizeof value, &value, sizeof value);
  };
  const auto error = [&](double number) {
    value = number;
    return importing.error();
  };
  CHECK_THAT(error(1e300), Contains("'weights': tensor final_norm/gain has 1e+300 at [3] (counted from 0), which F32 "
                                    "cannot hold: it would be infinite"));
  CHECK_THAT(error(std::nan("")),
             Contains("tensor final_norm/gain has NaN at [3] (counted from 0), and what a job loads"));
  CHECK_THAT(error(-INFINITY), Contains("tensor final_norm/gain has -Inf at [3]"));
  CHECK(checkpoint::list_checkpoints(importing.folder / "made").empty());
  CHECK(error(3e38) == "nothing");
}
