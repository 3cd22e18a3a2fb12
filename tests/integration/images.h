#pragma once

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/support/npy.h"

namespace shardrun::test {

/// 40 images of 13 by 10; the label is the third of the columns in which the bright spot is.
inline void write_images(const std::filesystem::path& folder) {
  std::string pixels;
  std::string labels;
  for (int sample = 0; sample < 40; ++sample) {
    const int label = sample % 3;
    for (int row = 0; row < 13; ++row) {
      for (int column = 0; column < 10; ++column) {
        const bool spot = std::abs(row - 2 - sample % 8) < 2 && std::abs(column - 1 - 3 * label) < 2;
        pixels +=
            bytes_of({(spot ? 1.0F : 0.0F) + static_cast<float>((sample * 5 + row * 7 + column * 3) % 11) / 22.0F});
      }
    }
    labels += bytes_of({label});
  }
  write_file(folder / "x.npy", npy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (40, 130), }", pixels));
  write_file(folder / "y.npy", npy_file("{'descr': '<i4', 'fortran_order': False, 'shape': (40,), }", labels));
}

}  // namespace shardrun::test
