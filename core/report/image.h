#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "core/files/atomic_file.h"

namespace shardrun::report {

struct Color {
  std::uint8_t red = 0;
  std::uint8_t green = 0;
  std::uint8_t blue = 0;

  bool operator==(const Color&) const = default;
};

/// How numbers become colours. Colours differ in lightness, too, so that they can be read with any colour vision.
enum class ColorMap : std::uint8_t {
  sequential,  ///< from dark violet to light yellow
  diverging,   ///< from dark blue over white to dark brown, with zero in the middle
};

// The first colours of a palette. Those of the map follow.
inline constexpr std::uint8_t white = 0;
inline constexpr std::uint8_t black = 1;
inline constexpr std::uint8_t grey = 2;  ///< for what is not a finite number
inline constexpr std::uint8_t ink = 3;   ///< for lines
inline constexpr std::uint8_t first_of_map = 4;
inline constexpr std::int64_t map_colors = 252;

using Palette = std::array<Color, 256>;

/// The palette of a map. Its colours are computed in Oklab (Björn Ottosson, "A perceptual color space for image
/// processing", 2020), in which equal steps of lightness look equal.
[[nodiscard]] Palette palette_of(ColorMap map);

/// Pixels from the upper left corner on, row by row. Each is the number of a colour in the palette.
struct Image {
  /// Makes a white image.
  Image(std::int64_t width, std::int64_t height, const Palette& palette);

  /// Fills the part of a rectangle that lies within the image with a colour.
  void fill(std::int64_t x, std::int64_t y, std::int64_t wide, std::int64_t high, std::uint8_t color);
  /// Writes black text whose upper left corner is at (x, y). A character without a glyph becomes '?'.
  void write(std::int64_t x, std::int64_t y, std::string_view text);

  std::int64_t width;
  std::int64_t height;
  Palette palette;
  std::vector<std::uint8_t> pixels;
};

// The size of a character in pixels, including the gap after it.
inline constexpr std::int64_t glyph_width = 12;
inline constexpr std::int64_t glyph_height = 16;

/// Writes a PNG. Replaces the file once the new one is complete. Throws Error{io}.
void write_png(const std::filesystem::path& path, const Image& image);

/// An animation that repeats without end. Until commit() the path keeps the old file. Throws Error{io}.
class GifWriter {
 public:
  /// `first`: has the size and the palette of all frames, but is not added. `seconds`: how long each frame is shown.
  GifWriter(std::filesystem::path path, const Image& first, double seconds);
  GifWriter(const GifWriter&) = delete;
  GifWriter& operator=(const GifWriter&) = delete;

  void add(const Image& image);
  void commit();

 private:
  static int write(void* writer, const unsigned char* bytes, int count);
  void require(bool done, int error) const;

  files::AtomicFile file_;
  int hundredths_;
  std::exception_ptr failed_;                   ///< why the file could not be written
  std::unique_ptr<void, void (*)(void*)> gif_;  ///< giflib's handle
};

}  // namespace shardrun::report
