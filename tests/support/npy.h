#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace shardrun::test {

/// A version 1 .npy file as numpy.save writes it: the header padded with spaces to a multiple of 64 bytes,
/// then the values.
inline std::string npy_file(std::string_view dictionary, std::string_view values) {
  std::string header(dictionary);
  header.append(63 - (10 + header.size()) % 64, ' ');
  header += '\n';
  std::string file("\x93NUMPY\x01\x00", 8);
  file += static_cast<char>(header.size() & 0xFFU);
  file += static_cast<char>(header.size() >> 8U);
  return file + header + std::string(values);
}

template <typename Number>
std::string bytes_of(std::initializer_list<Number> numbers) {
  std::string bytes;
  for (const Number& number : numbers) {
    bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
  }
  return bytes;
}

/// A .npy file with these values. `descr`: the type in NumPy's form ("<f4"). `shape`: in Python's form ("(2, 3)").
template <typename Number>
std::string npy_file(std::string_view descr, std::string_view shape, std::initializer_list<Number> values) {
  return npy_file(
      "{'descr': '" + std::string(descr) + "', 'fortran_order': False, 'shape': " + std::string(shape) + ", }",
      bytes_of(values));
}

}  // namespace shardrun::test
