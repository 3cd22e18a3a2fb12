#include "core/report/image.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace shardrun::report {
namespace {

/// A colour from its Oklab lightness, chroma and hue in degrees. Ottosson's matrices convert it to linear sRGB.
Color from_oklch(double lightness, double chroma, double hue) {
  const double a = chroma * std::cos(hue * std::numbers::pi / 180);
  const double b = chroma * std::sin(hue * std::numbers::pi / 180);
  const double l = std::pow(lightness + 0.3963377774 * a + 0.2158037573 * b, 3);
  const double m = std::pow(lightness - 0.1055613458 * a - 0.0638541728 * b, 3);
  const double s = std::pow(lightness - 0.0894841775 * a - 1.2914855480 * b, 3);
  const auto channel = [](double linear) {
    const double in_range = std::clamp(linear, 0.0, 1.0);
    const double encoded = in_range <= 0.0031308 ? 12.92 * in_range : 1.055 * std::pow(in_range, 1 / 2.4) - 0.055;
    return static_cast<std::uint8_t>(std::lround(255 * encoded));
  };
  return {channel(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
          channel(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
          channel(-0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s)};
}

/// The colour of a map at `at`, from 0 to 1.
Color color_at(ColorMap map, double at) {
  if (map == ColorMap::sequential) {
    return from_oklch(0.25 + 0.70 * at, 0.095 + 0.035 * at * at, 290 - 185 * at);
  }
  const double from_middle = std::abs(2 * at - 1);
  return at < 0.5 ? from_oklch(0.96 - 0.52 * from_middle, 0.13 * from_middle, 255)
                  : from_oklch(0.96 - 0.52 * from_middle, 0.12 * from_middle, 55);
}

constexpr int glyph_columns = 5;
constexpr std::size_t glyph_rows = 7;
constexpr std::int64_t pixel = 2;  ///< width and height of a glyph's dot

/// For each character: the character, then its rows from the top, as digits in base 32 whose highest bit is the dot on
/// the left.
constexpr std::string_view glyphs =
    "0ehjlphe14c4444e2eh168gv3eh161he426aiv225vgu11he668guhhe7v1248888ehhehhe9ehhf12cAehhvhhhBuhhuhhu"
    "CehgggheDsihhhisEvgguggvFvggugggGehgnhhfHhhhvhhhIe44444eJ72222icKhikokihLggggggvMhrllhhhNhhpljhh"
    "OehhhhhePuhhugggQehhhlidRuhhukihSfgge11uTv444444UhhhhhheVhhhhha4WhhhllrhXhha4ahhYhha4444Zv1248gv"
    "a00e1fhfbgguhhhuc00ehghed11fhhhfe00ehvgef698s888g0fhhf1ehgguhhhhi40c444ej20622ickggikokilc44444e"
    "m00qllhhn00uhhhho00ehhhep0uhhhugq0fhhhf1r00mpgggs00fge1ut88s8896u00hhhjdv00hhha4w00hhllax00ha4ah"
    "y0hhhf1ez00v248v.00000cc,0000c48-000v000+044v440_000000v/01248g0@ehnlnge=00v0v00:0cc0cc0(2488842"
    ")8422248[e88888e]e22222e*04lel40?eh12404";

/// Characters whose glyphs are drawn one dot lower.
constexpr std::string_view descending = "gpqy,";

/// Whether a dot of a character's glyph is black.
bool has_dot(char character, std::size_t row, int column) {
  std::size_t at = glyphs.size() - glyph_rows - 1;  // the place of '?'
  for (std::size_t glyph = 0; glyph < glyphs.size(); glyph += glyph_rows + 1) {
    at = glyphs[glyph] == character ? glyph : at;
  }
  const char digit = glyphs[at + 1 + row];
  const int dots = digit <= '9' ? digit - '0' : digit - 'a' + 10;
  return ((dots >> (glyph_columns - 1 - column)) & 1) != 0;
}

}  // namespace

Palette palette_of(ColorMap map) {
  Palette palette;
  palette[white] = {255, 255, 255};
  palette[black] = {0, 0, 0};
  palette[grey] = {128, 128, 128};
  palette[ink] = {20, 80, 150};
  for (std::int64_t i = 0; i < map_colors; ++i) {
    palette[static_cast<std::size_t>(first_of_map + i)] =
        color_at(map, static_cast<double>(i) / static_cast<double>(map_colors - 1));
  }
  return palette;
}

Image::Image(std::int64_t wide, std::int64_t high, const Palette& colors)
    : width(wide), height(high), palette(colors), pixels(static_cast<std::size_t>(wide * high), white) {}

void Image::fill(std::int64_t x, std::int64_t y, std::int64_t wide, std::int64_t high, std::uint8_t color) {
  const std::int64_t left = std::clamp<std::int64_t>(x, 0, width);
  const std::int64_t right = std::clamp<std::int64_t>(x + wide, left, width);
  const std::int64_t end = std::min(y + high, height);
  for (std::int64_t row = std::max<std::int64_t>(y, 0); row < end; ++row) {
    std::fill(pixels.begin() + row * width + left, pixels.begin() + row * width + right, color);
  }
}

void Image::write(std::int64_t x, std::int64_t y, std::string_view text) {
  for (const char character : text) {
    const std::int64_t top = y + (descending.find(character) == std::string_view::npos ? 0 : pixel);
    for (std::size_t row = 0; row < glyph_rows && character != ' '; ++row) {
      for (int column = 0; column < glyph_columns; ++column) {
        if (has_dot(character, row, column)) {
          fill(x + pixel * column, top + pixel * static_cast<std::int64_t>(row), pixel, pixel, black);
        }
      }
    }
    x += glyph_width;
  }
}

}  // namespace shardrun::report
