#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace shardrun::graph {

/// A node's few named constants. They are set when the graph is built. Shape rules and kernels read them; getters do
/// not allocate memory.
class Attributes {
 public:
  using Scalar = std::variant<std::int64_t, double, std::string, std::vector<double>, std::vector<std::int64_t>>;

  Attributes() = default;
  Attributes(std::initializer_list<std::pair<std::string, Scalar>> entries) : entries_(entries) {}

  /// These throw Error{internal} if the attribute is absent or of another type.
  [[nodiscard]] std::int64_t integer(std::string_view name) const;
  [[nodiscard]] double real(std::string_view name) const;
  [[nodiscard]] const std::string& text(std::string_view name) const;
  [[nodiscard]] const std::vector<double>& reals(std::string_view name) const;
  [[nodiscard]] const std::vector<std::int64_t>& integers(std::string_view name) const;

  [[nodiscard]] bool has(std::string_view name) const noexcept;
  /// REQUIRES: no attribute of that name exists.
  void add(std::string name, Scalar value) { entries_.emplace_back(std::move(name), std::move(value)); }

  [[nodiscard]] const std::vector<std::pair<std::string, Scalar>>& entries() const noexcept { return entries_; }

 private:
  std::vector<std::pair<std::string, Scalar>> entries_;
};

/// Declares an attribute that an op takes. A use of the op has to give it, unless it is `optional`.
struct AttributeSpec {
  enum class Type : std::uint8_t { integer, real, text, reals, integers };

  static AttributeSpec integer(std::string name, std::string help,
                               std::int64_t minimum = std::numeric_limits<std::int64_t>::min(),
                               std::int64_t maximum = std::numeric_limits<std::int64_t>::max()) {
    return {.name = std::move(name),
            .type = Type::integer,
            .help = std::move(help),
            .minimum = minimum,
            .maximum = maximum};
  }
  static AttributeSpec real(std::string name, std::string help) {
    return {.name = std::move(name), .type = Type::real, .help = std::move(help)};
  }
  static AttributeSpec text(std::string name, std::string help, std::vector<std::string> choices = {}) {
    return {.name = std::move(name), .type = Type::text, .help = std::move(help), .choices = std::move(choices)};
  }
  static AttributeSpec reals(std::string name, std::string help) {
    return {.name = std::move(name), .type = Type::reals, .help = std::move(help)};
  }
  static AttributeSpec integers(std::string name, std::string help) {
    return {.name = std::move(name), .type = Type::integers, .help = std::move(help)};
  }

  std::string name;
  Type type = Type::real;
  std::string help = {};
  std::int64_t minimum = std::numeric_limits<std::int64_t>::min();  ///< smallest value of an integer
  std::int64_t maximum = std::numeric_limits<std::int64_t>::max();
  std::vector<std::string> choices = {};  ///< allowed values of a text; empty: any text
  bool optional = false;
};

/// Throws Error{shape_mismatch} unless the attributes are the declared ones and have allowed values. Real numbers must
/// be finite.
void check_attributes(const std::vector<AttributeSpec>& specs, const Attributes& attributes);

/// If this attribute is 1, products (matmul, einsum) add in a fixed order. On the cpu, the bits of a result element
/// then depend only on its row of x, its column of w and the order of w's dimensions.
inline constexpr std::string_view fixed_order = "fixed_order";
[[nodiscard]] bool has_fixed_order(const Attributes& attributes) noexcept;

/// For example "dim, an integer from 0 to 7: the dimension".
[[nodiscard]] std::string describe(const AttributeSpec& spec);

/// For example "{contract=1, transpose=0}"; empty if there are no attributes.
[[nodiscard]] std::string to_string(const Attributes& attributes);

}  // namespace shardrun::graph
