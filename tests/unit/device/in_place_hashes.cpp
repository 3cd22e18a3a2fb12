// Kernels of updates hash the states that they read, and the results that replace these.

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/device/cpu/variant.h"
#include "core/device/hash.h"
#include "core/device/threads.h"
#include "core/graph/op.h"
#include "tests/support/catch.h"

using namespace shardrun;
using namespace shardrun::device;

namespace {

using Tensor = std::vector<float>;

/// An update: its states, then the gradient.
struct Update {
  std::string op;
  graph::Attributes attributes;
  std::size_t states = 0;
};

std::vector<Update> updates() {
  return {{"adamw", {{"beta1", 0.9}, {"beta2", 0.95}, {"epsilon", 1e-8}, {"decay", 0.1}}, 3},
          {"sgd", {{"momentum", 0.9}, {"decay", 0.1}}, 2},
          {"sgd", {{"momentum", 0.0}, {"decay", 0.0}}, 1}};
}

std::vector<Tensor> tensors_of(const Update& update, std::size_t elements) {
  std::vector<Tensor> tensors(update.states + 1, Tensor(elements));
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    for (std::size_t i = 0; i < elements; ++i) {
      tensors[t][i] = std::abs(std::sin(static_cast<float>(i * tensors.size() + t)));
    }
  }
  return tensors;
}

TensorView whole_view(Tensor& tensor) {
  TensorView view{.data = tensor.data(), .rank = 1};
  view.shape[0] = static_cast<std::int64_t>(tensor.size());
  return view;
}

/// Runs the update in place. `hashes`: null if none are asked for.
void run(const Update& update, const Kernel& kernel, std::vector<Tensor>& tensors, Threads& threads,
         InPlaceHash* hashes) {
  std::vector<TensorView> inputs;
  for (Tensor& tensor : tensors) {
    inputs.push_back(whole_view(tensor));
  }
  const std::vector<TensorView> outputs(inputs.begin(), inputs.end() - 1);
  const Scalars scalars = {.step = 3, .learning_rate = 0.01, .hashes = hashes};
  run_kernel(kernel, {.attributes = update.attributes,
                      .inputs = inputs,
                      .outputs = outputs,
                      .scratch = {},
                      .scalars = scalars,
                      .threads = threads});
}

std::uint64_t hash_of_tensor(const Tensor& tensor) { return hash_of(std::as_bytes(std::span(tensor))); }

bool are_equal_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  for (std::size_t t = 0; t < a.size(); ++t) {
    if (std::memcmp(a[t].data(), b[t].data(), a[t].size() * sizeof(float)) != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace

TEST_CASE("updates hash what they read and write, with any number of threads and elements", "[device]") {
  for (const Update& update : updates()) {
    for (const cpu::LevelKernel& variant : cpu::kernels_of(update.op)) {
      REQUIRE(variant.kernel.hashes);
      for (const std::size_t elements : {1U, 3U, 16U, 17U, 40'005U}) {
        for (const int count : {1, 3}) {
          INFO(update.op << " of " << update.states << " states, level " << variant.level << ", " << elements
                         << " elements, " << count << " threads");
          Threads threads(count);
          std::vector<Tensor> tensors = tensors_of(update, elements);
          tensors.back().back() = std::numeric_limits<float>::quiet_NaN();
          std::vector<Tensor> plain = tensors;
          const std::vector<Tensor> before = tensors;
          std::vector<InPlaceHash> hashes(update.states);

          run(update, variant.kernel, tensors, threads, hashes.data());

          run(update, variant.kernel, plain, threads, nullptr);
          CHECK(are_equal_bits(tensors, plain));
          for (std::size_t s = 0; s < update.states; ++s) {
            CHECK(hashes[s].read == hash_of_tensor(before[s]));
            CHECK(hashes[s].written == hash_of_tensor(tensors[s]));
          }
        }
      }
    }
  }
}

TEST_CASE("an update with an infinite gradient scale hashes its last elements right", "[device]") {
  const Update update = updates().front();
  for (const cpu::LevelKernel& variant : cpu::kernels_of(update.op)) {
    INFO("level " << variant.level);
    Threads threads(1);
    std::vector<Tensor> tensors = tensors_of(update, 19);
    Tensor scale = {std::numeric_limits<float>::infinity()};
    std::vector<TensorView> inputs;
    for (Tensor& tensor : tensors) {
      inputs.push_back(whole_view(tensor));
    }
    const std::vector<TensorView> outputs = inputs;
    inputs.push_back(whole_view(scale));
    std::vector<InPlaceHash> hashes(update.states);
    const Scalars scalars = {.learning_rate = 0.01, .hashes = hashes.data()};

    run_kernel(variant.kernel, {.attributes = update.attributes,
                                .inputs = inputs,
                                .outputs = std::span(outputs).first(update.states),
                                .scratch = {},
                                .scalars = scalars,
                                .threads = threads});

    for (std::size_t s = 0; s < update.states; ++s) {
      CHECK(hashes[s].written == hash_of_tensor(tensors[s]));
    }
  }
}
