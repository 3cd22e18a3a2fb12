// Times single ops of the device cpu. Reads a case per line, as JSON: {"op": "softmax", "attributes": {"dim": 1},
// "operands": [[64, 1024]]}. All operands are float32. Prints {"median_ms": …} for each. `ops` compares them with
// PyTorch.

#include <algorithm>
#include <boost/json.hpp>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/device/device.h"
#include "core/device/threads.h"
#include "core/graph/sharding_rule.h"

namespace {

using namespace shardrun;
namespace json = boost::json;

graph::Attributes attributes_of(const json::object& given) {
  graph::Attributes attributes;
  for (const auto& [name, value] : given) {
    if (value.is_int64()) {
      attributes.add(name, value.as_int64());
    } else if (value.is_double()) {
      attributes.add(name, value.as_double());
    } else if (value.is_array()) {
      attributes.add(name, json::value_to<std::vector<std::int64_t>>(value));
    } else {
      attributes.add(name, json::value_to<std::string>(value));
    }
  }
  return attributes;
}

/// Tensors with their own memory, filled with numbers between 0.5 and 1.5.
struct Tensors {
  explicit Tensors(const std::vector<graph::TensorType>& types) {
    std::minstd_rand engine(1);
    std::uniform_real_distribution<float> draw(0.5F, 1.5F);
    for (const graph::TensorType& type : types) {
      constexpr std::size_t page = 4096;
      const std::size_t count = static_cast<std::size_t>(graph::element_count(type));
      const std::size_t bytes = (count * sizeof(float) + page) / page * page;
      auto* data = static_cast<float*>(std::aligned_alloc(page, bytes));
      memory.emplace_back(data, std::free);
      std::generate_n(data, count, [&] { return draw(engine); });
      device::TensorView view{.data = data, .rank = static_cast<std::uint32_t>(type.shape.size())};
      std::copy(type.shape.begin(), type.shape.end(), view.shape.begin());
      view.global = view.shape;
      views.push_back(view);
    }
  }

  std::vector<std::unique_ptr<float, decltype(&std::free)>> memory;
  std::vector<device::TensorView> views;
};

/// The median time of a call, over about a second and at least five calls, after one call that is not counted.
double median_ms(const json::object& given, device::Threads& threads) {
  using Clock = std::chrono::steady_clock;
  const graph::Op& op = graph::find_op(given.at("op").as_string());
  const graph::Attributes attributes = attributes_of(given.at("attributes").as_object());
  std::vector<graph::TensorType> types;
  for (const json::value& operand : given.at("operands").as_array()) {
    auto shape = json::value_to<std::vector<std::int64_t>>(operand);
    std::vector<std::string> axes(shape.size());
    types.push_back({.dtype = graph::DType::f32, .shape = std::move(shape), .axes = std::move(axes)});
  }
  graph::ShardingRule rule = op.rule(attributes, types);
  const std::vector<graph::TensorType> results = graph::infer_types(rule, types, op.name);
  const Tensors inputs(types);
  const Tensors outputs(results);
  const device::Kernel& kernel = device::Device::find("cpu").kernel(op.name);
  const graph::OpShape shape{attributes, types, results};
  std::vector<std::byte> scratch(kernel.scratch_bytes == nullptr ? 0 : kernel.scratch_bytes(shape, threads.count()));
  const std::shared_ptr<void> prepared = kernel.prepare == nullptr ? nullptr : kernel.prepare(shape);
  const device::Scalars scalars;
  const device::KernelCall call{.attributes = attributes,
                                .inputs = inputs.views,
                                .outputs = outputs.views,
                                .scratch = scratch,
                                .scalars = scalars,
                                .threads = threads,
                                .prepared = prepared.get()};
  std::vector<double> times;
  kernel.run(call);
  const auto start = Clock::now();
  while (times.size() < 5 || Clock::now() - start < std::chrono::seconds(1)) {
    const auto begin = Clock::now();
    kernel.run(call);
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
  }
  std::ranges::nth_element(times, times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2));
  return times[times.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  try {
    device::Threads threads(argc > 1 ? std::stoi(argv[1]) : 1);
    for (std::string line; std::getline(std::cin, line);) {
      const double median = median_ms(json::parse(line).as_object(), threads);
      std::cout << json::serialize(json::object{{"median_ms", median}}) << std::endl;
    }
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "op_times: " << error.what() << '\n';
    return 1;
  }
}
