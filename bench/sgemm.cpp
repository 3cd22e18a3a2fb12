// The rate at which this machine multiplies matrices: float32 with the library of shardrun's matmul, bfloat16 with
// shardrun's matmul. Training rates are given as a share of this ceiling.

#include <dlfcn.h>
#include <dnnl.h>

#include <algorithm>
#include <boost/json.hpp>
#include <boost/program_options.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fmt/format.h>
#include <iostream>
#include <string>
#include <vector>

#include "bf16_product.h"
#include "core/base/error.h"

namespace {

using shardrun::Error;
using shardrun::ErrorCode;

struct Shape {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
};

struct Rate {
  Shape shape;
  double best_gflops = 0;
  double median_gflops = 0;
  double bf16_median_gflops = 0;
};

struct Options {
  std::vector<Shape> shapes;
  int threads = 1;
  double seconds = 1;
  bool json = false;
};

/// The function of the OpenMP runtime that oneDNN is linked to, which may differ from this compiler's runtime.
void use_threads(int count) {
  using SetThreads = void (*)(int);
  const auto set_threads = reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (set_threads == nullptr) {
    throw Error{ErrorCode::internal, "this oneDNN is built without OpenMP, so that --threads cannot be set"};
  }
  set_threads(count);
}

/// Small integers, the same in every run, so that neither denormals nor overflow occur.
std::vector<float> numbers(std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i % 7) - 3.0F;
  }
  return values;
}

/// GFLOP/s of each call of multiply(), ascending: calls for about `seconds`, at least five,
/// after one that is not counted.
template <typename Multiply>
std::vector<double> rates_of(const Shape& shape, double seconds, const Multiply& multiply) {
  using Clock = std::chrono::steady_clock;
  const double gflop = 2e-9 * static_cast<double>(shape.m * shape.n * shape.k);
  std::vector<double> rates;
  multiply();
  const auto start = Clock::now();
  while (rates.size() < 5 || std::chrono::duration<double>(Clock::now() - start).count() < seconds) {
    const auto begin = Clock::now();
    multiply();
    rates.push_back(gflop / std::chrono::duration<double>(Clock::now() - begin).count());
  }
  std::sort(rates.begin(), rates.end());
  return rates;
}

Rate measure(const Shape& shape, const Options& options) {
  const auto a = numbers(shape.m * shape.k);
  const auto b = numbers(shape.k * shape.n);
  auto c = numbers(shape.m * shape.n);
  const auto multiply = [&] {
    const auto status = dnnl_sgemm('N', 'N', shape.m, shape.n, shape.k, 1.0F, a.data(), shape.k, b.data(), shape.n,
                                   0.0F, c.data(), shape.n);
    if (status != dnnl_success) {
      throw Error{ErrorCode::internal, fmt::format("dnnl_sgemm of {}x{}x{} failed with status {}", shape.m, shape.n,
                                                   shape.k, static_cast<int>(status))};
    }
  };
  use_threads(options.threads);
  const std::vector<double> rates = rates_of(shape, options.seconds, multiply);
  use_threads(1);  // shardrun's matmul uses its own threads
  const std::vector<double> in_bf16 =
      rates_of(shape, options.seconds, shardrun::bench::bf16_product(shape.m, shape.n, shape.k, options.threads));
  return {shape, rates.back(), rates[rates.size() / 2], in_bf16[in_bf16.size() / 2]};
}

std::vector<Shape> parse_shapes(const std::vector<std::int64_t>& sizes) {
  if (sizes.empty()) {
    return {{1024, 1024, 1024}, {2048, 2048, 2048}};
  }
  constexpr std::int64_t largest = 1 << 20;
  const bool in_range = std::all_of(sizes.begin(), sizes.end(), [](auto size) { return 0 < size && size <= largest; });
  if (sizes.size() != 3 || !in_range) {
    throw Error{ErrorCode::usage, fmt::format("a shape is three numbers m n k, each from 1 to {}", largest)};
  }
  return {{sizes[0], sizes[1], sizes[2]}};
}

Options parse_options(int argc, char** argv) {
  namespace po = boost::program_options;
  Options options;
  std::vector<std::int64_t> sizes;
  po::options_description described{"options"};
  auto add = described.add_options();
  add("help", "prints this");
  add("threads", po::value(&options.threads)->default_value(1), "OpenMP threads");
  add("seconds", po::value(&options.seconds)->default_value(1), "to spend on each shape");
  add("json", po::bool_switch(&options.json), "prints one JSON object");
  po::options_description all;
  all.add(described).add_options()("size", po::value(&sizes)->multitoken());
  po::positional_options_description positions;
  positions.add("size", -1);
  po::variables_map values;
  po::store(po::command_line_parser(argc, argv).options(all).positional(positions).run(), values);
  po::notify(values);
  if (values.count("help") != 0) {
    std::cout << "usage: sgemm [m n k] [options]   (without sizes: 1024 and 2048 cubed)\n" << described;
    std::exit(0);
  }
  if (options.threads < 1) {
    throw Error{ErrorCode::usage, fmt::format("--threads must be at least 1, found {}", options.threads)};
  }
  options.shapes = parse_shapes(sizes);
  return options;
}

std::string to_json(const Options& options, const std::vector<Rate>& rates) {
  boost::json::array rows;
  for (const auto& rate : rates) {
    rows.push_back({{"m", rate.shape.m},
                    {"n", rate.shape.n},
                    {"k", rate.shape.k},
                    {"best_gflops", rate.best_gflops},
                    {"median_gflops", rate.median_gflops},
                    {"bf16_median_gflops", rate.bf16_median_gflops}});
  }
  const auto* version = dnnl_version();
  return boost::json::serialize(
      boost::json::object{{"onednn", fmt::format("{}.{}.{}", version->major, version->minor, version->patch)},
                          {"threads", options.threads},
                          {"rows", std::move(rows)}});
}

void run(const Options& options) {
  std::vector<Rate> rates;
  for (const auto& shape : options.shapes) {
    rates.push_back(measure(shape, options));
  }
  if (options.json) {
    fmt::print("{}\n", to_json(options, rates));
    return;
  }
  fmt::print("{:>18} {:>13} {:>15} {:>13} {:>7}   {} threads, GFLOP/s\n", "m x n x k", "best", "median", "bf16 median",
             "ratio", options.threads);
  for (const auto& rate : rates) {
    const auto name = fmt::format("{} x {} x {}", rate.shape.m, rate.shape.n, rate.shape.k);
    fmt::print("{:>18} {:>13.1f} {:>15.1f} {:>13.1f} {:>7.2f}\n", name, rate.best_gflops, rate.median_gflops,
               rate.bf16_median_gflops, rate.bf16_median_gflops / rate.median_gflops);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(parse_options(argc, argv));
    return 0;
  } catch (const Error& error) {
    fmt::print(stderr, "sgemm: {}\n", error.what());
    return exit_code(error.code());
  } catch (const std::exception& error) {
    fmt::print(stderr, "sgemm: {}\n", error.what());
    return 2;
  }
}
