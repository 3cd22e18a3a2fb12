// Times single ops of the device cpu. Reads a case per line, as JSON: {"op": "softmax", "attributes": {"dim": 1},
// "operands": [[64, 1024]]}. Prints {"median_ms": …} for each. `ops` compares them with PyTorch.
//
// An operand is float32, or an object with its type: {"shape": [64, 1024], "dtype": "bf16"}. Elements of i32 are
// "first", "first" + "step", …; 0 and 1 if they are not given. "reads": [1, 2] says that the op reads these operands
// once. Then "gb_s", the rate at which it does, and "memory_gb_s", the rate at which as many threads add up an array of
// 256 MiB, are printed as well.

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <boost/json.hpp>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <iterator>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
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

/// An operand of a case.
struct Operand {
  explicit Operand(const json::value& given) {
    const json::object none;
    const json::object& typed = given.is_object() ? given.as_object() : none;
    const auto integer = [&](const char* name, std::int64_t missing) {
      return typed.contains(name) ? typed.at(name).as_int64() : missing;
    };
    type.shape = json::value_to<std::vector<std::int64_t>>(given.is_object() ? typed.at("shape") : given);
    type.axes.resize(type.shape.size());
    type.dtype =
        graph::find_dtype(typed.contains("dtype") ? std::string(typed.at("dtype").as_string()) : "f32").value();
    first = integer("first", 0);
    step = integer("step", 1);
  }
  graph::TensorType type;
  std::int64_t first;
  std::int64_t step;
};

/// A tensor with its own memory. Real numbers are between 0.5 and 1.5.
struct Tensor {
  explicit Tensor(const graph::TensorType& type, std::int64_t first = 0, std::int64_t step = 1) {
    constexpr std::size_t page = 4096;
    const auto count = static_cast<std::size_t>(graph::element_count(type));
    const std::size_t bytes = (count * graph::element_bytes(type.dtype) + page) / page * page;
    memory.reset(static_cast<std::byte*>(std::aligned_alloc(page, bytes)));
    std::minstd_rand engine(1);
    std::uniform_real_distribution<float> draw(0.5F, 1.5F);
    for (std::size_t i = 0; i < count; ++i) {
      const float real = draw(engine);
      const auto integer = static_cast<std::int32_t>(first + step * static_cast<std::int64_t>(i));
      const auto bfloat = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(real) >> 16U);
      const void* const from = type.dtype == graph::DType::f32    ? static_cast<const void*>(&real)
                               : type.dtype == graph::DType::bf16 ? static_cast<const void*>(&bfloat)
                                                                  : static_cast<const void*>(&integer);
      const std::size_t size = graph::element_bytes(type.dtype);
      std::memcpy(memory.get() + i * size, from, size);
    }
    view = {.data = memory.get(),
            .dtype = type.dtype,
            .rounded = type.dtype,
            .rank = static_cast<std::uint32_t>(type.shape.size())};
    std::ranges::copy(type.shape, view.shape.begin());
    view.global = view.shape;
  }

  std::unique_ptr<std::byte, decltype(&std::free)> memory{nullptr, std::free};
  device::TensorView view;
};

std::vector<device::TensorView> views_of(const std::vector<Tensor>& tensors) {
  std::vector<device::TensorView> views;
  std::ranges::transform(tensors, std::back_inserter(views), &Tensor::view);
  return views;
}

/// The median time of a call, over about a second and at least five calls, after one call that is not counted.
template <typename Call>
double median_ms(const Call& call) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> times;
  call();
  const auto start = Clock::now();
  while (times.size() < 5 || Clock::now() - start < std::chrono::seconds(1)) {
    const auto begin = Clock::now();
    call();
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
  }
  std::ranges::nth_element(times, times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2));
  return times[times.size() / 2];
}

double gb_s(double bytes, double ms) { return bytes / ms / 1e6; }

/// GB/s at which the threads add up an array that no cache holds.
double memory_rate(device::Threads& threads) {
  constexpr std::size_t words = (std::size_t{256} << 20U) / sizeof(std::uint64_t);
  static const std::vector<std::uint64_t> array(words, 1);
  std::atomic<std::uint64_t> total = 0;
  const double ms = median_ms([&] {
    threads.split(words, 4096, [&](std::int64_t begin, std::int64_t end) {
      std::array<std::uint64_t, 8> sums = {};
      for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); i += sums.size()) {
        for (std::size_t s = 0; s < sums.size(); ++s) {
          sums[s] += array[i + s];
        }
      }
      total += std::accumulate(sums.begin(), sums.end(), std::uint64_t{0});
    });
  });
  if (total % words != 0) {
    throw std::runtime_error("the sum of an array is wrong");
  }
  return gb_s(static_cast<double>(words * sizeof(std::uint64_t)), ms);
}

json::object measure(const json::object& given, device::Threads& threads) {
  const graph::Op& op = graph::find_op(given.at("op").as_string());
  const graph::Attributes attributes = attributes_of(given.at("attributes").as_object());
  std::vector<graph::TensorType> types;
  std::vector<Tensor> operands;
  for (const json::value& each : given.at("operands").as_array()) {
    const Operand operand(each);
    types.push_back(operand.type);
    operands.emplace_back(operand.type, operand.first, operand.step);
  }
  graph::ShardingRule rule = op.rule(attributes, types);
  const std::vector<graph::TensorType> result_types = graph::infer_types(rule, types, op.name);
  const std::vector<Tensor> results(result_types.begin(), result_types.end());
  const std::vector<device::TensorView> inputs = views_of(operands);
  const std::vector<device::TensorView> outputs = views_of(results);
  const device::Kernel& kernel = device::Device::find("cpu").kernel(op.name);
  const graph::OpShape shape{attributes, types, result_types};
  std::vector<std::byte> scratch(kernel.scratch_bytes == nullptr ? 0 : kernel.scratch_bytes(shape, threads.count()));
  const std::shared_ptr<void> prepared = kernel.prepare == nullptr ? nullptr : kernel.prepare(shape);
  const device::Scalars scalars;
  const device::KernelCall call{.attributes = attributes,
                                .inputs = inputs,
                                .outputs = outputs,
                                .scratch = scratch,
                                .scalars = scalars,
                                .threads = threads,
                                .prepared = prepared.get()};
  const double ms = median_ms([&] { kernel.run(call); });
  json::object measured = {{"median_ms", ms}};
  if (given.contains("reads")) {
    double bytes = 0;
    for (const json::value& operand : given.at("reads").as_array()) {
      bytes += static_cast<double>(inputs.at(operand.to_number<std::size_t>()).bytes());
    }
    measured["gb_s"] = gb_s(bytes, ms);
    measured["memory_gb_s"] = memory_rate(threads);
  }
  return measured;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    device::Threads threads(argc > 1 ? std::stoi(argv[1]) : 1);
    for (std::string line; std::getline(std::cin, line);) {
      std::cout << json::serialize(measure(json::parse(line).as_object(), threads)) << std::endl;
    }
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "op_times: " << error.what() << '\n';
    return 1;
  }
}
