// Checkpoints that are written in one layout and read in another.

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint/contents.h"
#include "core/checkpoint/folder.h"
#include "core/checkpoint/given_weights.h"
#include "core/checkpoint/open_checkpoint.h"
#include "core/checkpoint/rank_file.h"
#include "core/checkpoint/resume.h"
#include "core/checkpoint/verify.h"
#include "core/device/elements.h"
#include "core/device/host_tensor.h"
#include "core/files/sequential_file.h"
#include "core/runtime/executor.h"
#include "tests/support/catch.h"
#include "tests/support/compiled_job.h"
#include "tests/support/errors.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Matchers::Contains;

namespace {

struct SavedLayout {
  std::string name;
  std::vector<std::string> settings;
};

const std::vector<SavedLayout>& saved_layouts() {
  static const std::vector<SavedLayout> all = {
      {"single", {"job.strategy=single"}},
      {"dp", {"job.strategy=dp", "job.ranks=2"}},
      {"tp", {"job.strategy=tp", "job.ranks=2"}},
      {"pp", {"job.strategy=pp", "job.ranks=2"}},
      {"zero1", {"job.strategy=zero1", "job.ranks=2"}},
      {"zero2 mixed", {"job.strategy=zero2", "job.ranks=2", "train.precision=mixed"}},
      {"zero3 of 4", {"job.strategy=zero3", "job.ranks=4"}},
      {"3d", {"job.strategy=3d", "mesh.data=2", "mesh.model=2", "mesh.pipe=2", "job.ranks=8", "strategy.zero=1"}},
      {"hsdp", {"job.strategy=hsdp", "mesh.replica=2", "mesh.shard=2", "job.ranks=4"}},
  };
  return all;
}

/// A number for each element of each tensor, the same in all layouts. bf16 holds it exactly.
double value_at(const std::string& tensor, std::int64_t element) {
  std::uint64_t hash = 0xcbf29ce484222325U + static_cast<std::uint64_t>(element) * 0x9e3779b97f4a7c15U;
  for (const char c : tensor) {
    hash = (hash ^ static_cast<std::uint64_t>(c)) * 0x100000001b3U;
  }
  return static_cast<double>((hash >> 32U) % 255) - 127;
}

/// All ranks of a job, with their arenas.
class Ranks {
 public:
  Ranks(const TemporaryFolder& folder, const SavedLayout& layout, std::vector<std::string> more = {})
      : job_(text_job_in(folder, settings_of(layout, std::move(more)))), compiled_(compile_ready(job_)) {
    for (std::int64_t rank = 0; rank < job_.ranks; ++rank) {
      executors_.push_back(std::make_unique<runtime::Executor>(compile::programs_of_rank(job_, compiled_, rank),
                                                               *compiled_.device, compiled_.hooks.get()));
    }
  }

  [[nodiscard]] const job::Job& job() const { return job_; }
  [[nodiscard]] const compile::Compiled& compiled() const { return compiled_; }

  /// Calls `visit` with the whole index, and the value to read and write, of each element of each state that is saved.
  template <typename Visit>
  void for_elements(device::Access access, const Visit& visit) const {
    for (const std::unique_ptr<runtime::Executor>& executor : executors_) {
      for (const graph::StateId id : compiled_.graph.states.ids()) {
        if (!checkpoint::role_of(compiled_.graph, id)) {
          continue;
        }
        for (const graph::StateId state : std::set<graph::StateId>{id, compiled_.graph.master_of(id)}) {
          device::HostTensor part(executor->queue(), executor->state(state), access);
          const mesh::Box& box = executor->part(state);
          for (std::int64_t local = 0; local < box.elements(); ++local) {
            double value = device::read_element(part.view(), local);
            visit(compiled_.graph.states[id].name, box.index_in_whole(compiled_.graph.states[id].type.shape, local),
                  value);
            device::write_elements(part.view(), local, {&value, 1});
          }
          part.store();
        }
      }
    }
  }

  void fill() const {
    for_elements(device::Access::write,
                 [](const std::string& name, std::int64_t at, double& value) { value = value_at(name, at); });
  }

  /// The number of elements that differ from what fill() writes.
  [[nodiscard]] std::int64_t wrong() const {
    std::int64_t wrong = 0;
    for_elements(device::Access::read, [&](const std::string& name, std::int64_t at, const double& value) {
      wrong += value == value_at(name, at) ? 0 : 1;
    });
    return wrong;
  }

  /// Gives each rank its parts of the parameters, from numbers as fill() writes. Returns the bytes that were read, and
  /// those of the parameters.
  [[nodiscard]] std::pair<std::uint64_t, std::uint64_t> load(checkpoint::DType dtype) const {
    std::uint64_t read = 0;
    std::uint64_t all = 0;
    checkpoint::TensorSource source;
    for (const graph::State& state : compiled_.graph.states) {
      if (state.kind == graph::StateKind::parameter) {
        source.tensors.push_back({state.name, dtype, state.type.shape});
        all += *tensor_bytes(source.tensors.back());
      }
    }
    source.read = [&](std::size_t tensor, std::int64_t first, std::span<std::byte> to) {
      const bool is_wide = dtype == checkpoint::DType::f32;
      std::vector<double> values(to.size() / element_bytes(dtype));
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = value_at(source.tensors[tensor].name, first + static_cast<std::int64_t>(i));
      }
      device::write_elements(is_wide ? graph::DType::f32 : graph::DType::bf16, values, to);
      read += to.size();
    };
    for (const std::unique_ptr<runtime::Executor>& executor : executors_) {
      checkpoint::load_parameters(source, compiled_.graph, *executor);
    }
    return {read, all};
  }

  void spoil() const {
    for_elements(device::Access::write, [](const std::string&, std::int64_t, double& value) { value = 0.5; });
  }

  [[nodiscard]] checkpoint::RunIdentity identity() const { return compile::identity_of(job_, compiled_); }

  /// Saves a checkpoint. Returns the bytes that the ranks wrote.
  std::uint64_t save(const std::filesystem::path& root, std::int64_t step) const {
    const checkpoint::Contents contents = compile::contents_of(job_, compiled_);
    const std::filesystem::path folder = checkpoint::begin_checkpoint(root, step);
    checkpoint::Manifest manifest{.step = step, .run = identity(), .strategy = job_.strategy.name};
    std::vector<checkpoint::StoredFile> stored;
    for (std::size_t rank = 0; rank < executors_.size(); ++rank) {
      const checkpoint::RankFile of_rank(contents, static_cast<std::int64_t>(rank));
      const std::string name = checkpoint::rank_file_name(static_cast<std::int64_t>(rank));
      files::SequentialFile file(folder / name, of_rank.bytes());
      of_rank.stream(*executors_[rank], [&](std::span<const std::byte> bytes) { file.write(bytes); });
      stored.push_back({name, of_rank.bytes(), file.finish()});
    }
    describe(contents, std::move(stored), manifest);
    checkpoint::commit_checkpoint(root, manifest);
    return checkpoint::file_bytes(manifest);
  }

  std::vector<std::string> load(const checkpoint::OpenCheckpoint& opened) const {
    std::vector<std::string> notices =
        checkpoint::check_resumed(job_, opened, identity(), compiled_.graph, compiled_.partition);
    for (std::size_t rank = 0; rank < executors_.size(); ++rank) {
      checkpoint::load_states(opened, compiled_.graph, compiled_.partition, *executors_[rank],
                              static_cast<std::int64_t>(rank));
    }
    return notices;
  }

 private:
  static std::vector<std::string> settings_of(const SavedLayout& layout, std::vector<std::string> more) {
    std::vector<std::string> settings = layout.settings;
    if (more.empty() || !more.front().starts_with("data.batch")) {
      more.insert(more.begin(), {"data.batch=8", "data.microbatches=2"});
    }
    settings.insert(settings.end(), more.begin(), more.end());
    return settings;
  }

  job::Job job_;
  compile::Compiled compiled_;
  std::vector<std::unique_ptr<runtime::Executor>> executors_;
};

}  // namespace

TEST_CASE("a checkpoint of any layout is read in any other, bit for bit", "[checkpoint]") {
  const TemporaryFolder folder;
  std::vector<std::unique_ptr<Ranks>> all;
  std::uint64_t least = UINT64_MAX;
  std::uint64_t most = 0;
  for (std::size_t i = 0; i < saved_layouts().size(); ++i) {
    INFO(saved_layouts()[i].name);
    const Ranks& ranks = *all.emplace_back(std::make_unique<Ranks>(folder, saved_layouts()[i]));
    ranks.spoil();
    REQUIRE(ranks.wrong() > 0);
    ranks.fill();
    const std::uint64_t bytes = ranks.save(folder / "checkpoints", static_cast<std::int64_t>(i));
    least = std::min(least, bytes);
    most = std::max(most, bytes);
  }
  CHECK(most < least + least / 2);  // replicas are written once; the rest is headers
  for (std::size_t from = 0; from < all.size(); ++from) {
    const checkpoint::OpenCheckpoint opened(folder / "checkpoints" /
                                            checkpoint::folder_name(static_cast<std::int64_t>(from)));
    opened.check_all_files();
    CHECK(checkpoint::verify_checkpoint(opened.path()).faults.empty());
    for (std::size_t to = 0; to < all.size(); ++to) {
      INFO(saved_layouts()[from].name << " read as " << saved_layouts()[to].name);
      all[to]->spoil();
      CHECK(all[to]->load(opened).empty());
      CHECK(all[to]->wrong() == 0);
    }
  }
}

TEST_CASE("a change of model or optimizer is refused with both values", "[checkpoint]") {
  const TemporaryFolder folder;
  const SavedLayout& single = saved_layouts().front();
  const Ranks ranks(folder, single);
  ranks.fill();
  ranks.save(folder / "checkpoints", 3);
  const checkpoint::OpenCheckpoint opened(folder / "checkpoints/step-000003");
  const auto refusal = [&](const std::vector<std::string>& settings) {
    const Ranks other(folder, single, settings);
    return error_of([&] { static_cast<void>(other.load(opened)); });
  };
  CHECK_THAT(refusal({"model.width=32"}), Contains("'width = 16'") && Contains("'width = 32'"));
  CHECK_THAT(refusal({"model.layers=3"}), Contains("'layers = 2'") && Contains("'layers = 3'"));
  CHECK_THAT(refusal({"train.optimizer=sgd"}), Contains("optimizer adamw") && Contains("has sgd"));
  CHECK_THAT(refusal({"job.seed=7"}), Contains("seed 1337") && Contains("has 7") && Contains("--force-data"));
  CHECK_THAT(refusal({"data.split=0.5"}), Contains("split 0.9") && Contains("has 0.5"));
  CHECK_THAT(refusal({"data.tokenizer=byte"}), Contains("with the model"));
  const Ranks others(folder, single, {"data.batch=4", "data.microbatches=1", "train.learning_rate=1", "train.steps=9"});
  CHECK(others.load(opened).empty());
}

TEST_CASE("layouts: ranks that begin with weights read each byte of them once", "[checkpoint]") {
  const TemporaryFolder folder;
  for (const SavedLayout& layout : std::vector<SavedLayout>{
           {"tp", {"job.strategy=tp", "job.ranks=4"}},
           {"pp", {"job.strategy=pp", "job.ranks=2", "model.tied=false"}},
           {"zero3 of 4", {"job.strategy=zero3", "job.ranks=4"}},
           {"zero3 mixed", {"job.strategy=zero3", "job.ranks=4", "train.precision=mixed"}},
       }) {
    const Ranks ranks(folder, layout, {"model.width=256", "model.heads=4", "train.optimizer=sgd"});
    for (const checkpoint::DType dtype : {checkpoint::DType::f32, checkpoint::DType::bf16}) {
      INFO(layout.name << " " << to_string(dtype));
      const auto [read, all] = ranks.load(dtype);
      CHECK(static_cast<double>(read) <= 1.05 * static_cast<double>(all));
      CHECK(ranks.wrong() == 0);
      ranks.spoil();
    }
  }
}
