#pragma once

#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>

namespace shardrun::test {

/// The samples of a text of Prometheus' format 0.0.4, by name and labels as they are written: step{rank="1"}. Throws
/// if the text breaks the format, or if a metric has no HELP or TYPE before its samples, or is told twice.
inline std::map<std::string, double> prometheus_samples(const std::string& text) {
  static const std::regex help(R"(# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) \S.*)");
  static const std::regex type(R"(# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge))");
  static const std::string label = R"re([a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\]|\\["\\n])*")re";
  static const std::regex sample(R"(([a-zA-Z_:][a-zA-Z0-9_:]*)((?:\{)" + label + "(?:," + label +
                                 R"()*\})?) (NaN|[+-]?Inf|-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?))");
  std::map<std::string, double> samples;
  std::set<std::string> told;
  std::string helped;
  std::string current;
  if (!text.ends_with('\n')) {
    throw std::runtime_error("the text does not end in a newline");
  }
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::smatch found;
    const auto require = [&](bool holds, const char* what) {
      if (!holds) {
        throw std::runtime_error(std::string(what) + ": " + line);
      }
    };
    if (std::regex_match(line, found, help)) {
      helped = found[1];
      require(told.insert(helped).second, "a metric is told twice");
    } else if (std::regex_match(line, found, type)) {
      current = found[1];
      require(current == helped, "TYPE without HELP");
      require(current.ends_with("_total") == (found[2] == "counter"), "a counter's name ends in _total, no other does");
    } else {
      require(std::regex_match(line, found, sample), "not a line of the format");
      require(found[1] == current, "a sample without HELP and TYPE");
      require(samples.emplace(found[1].str() + found[2].str(), std::stod(found[3])).second, "a sample is told twice");
    }
  }
  return samples;
}

}  // namespace shardrun::test
