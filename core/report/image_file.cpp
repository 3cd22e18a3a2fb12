#include <fmt/format.h>
#include <gif_lib.h>
#include <png.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <span>
#include <string>

#include "core/base/error.h"
#include "core/report/image.h"

namespace shardrun::report {
namespace {

[[noreturn]] void refuse_write(const std::filesystem::path& path, std::string_view why) {
  throw Error(ErrorCode::io, fmt::format("cannot write the picture '{}': {}", path.native(), why));
}

GifFileType* gif_of(const std::unique_ptr<void, void (*)(void*)>& gif) { return static_cast<GifFileType*>(gif.get()); }

}  // namespace

void write_png(const std::filesystem::path& path, const Image& image) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.width = static_cast<png_uint_32>(image.width);
  png.height = static_cast<png_uint_32>(image.height);
  png.format = PNG_FORMAT_RGB_COLORMAP;
  png.colormap_entries = static_cast<png_uint_32>(image.palette.size());
  png_alloc_size_t bytes = PNG_IMAGE_PNG_SIZE_MAX(png);
  std::string file(bytes, '\0');
  if (png_image_write_to_memory(&png, file.data(), &bytes, 0, image.pixels.data(), 0, image.palette.data()) == 0) {
    refuse_write(path, png.message);
  }
  file.resize(bytes);
  files::write_file_atomically(path, file);
}

GifWriter::GifWriter(std::filesystem::path path, const Image& first, double seconds)
    : file_(std::move(path)),
      hundredths_(static_cast<int>(std::clamp(std::lround(seconds * 100), 1L, 65535L))),
      gif_(nullptr, [](void* gif) { EGifCloseFile(static_cast<GifFileType*>(gif), nullptr); }) {
  if (first.width > 65535 || first.height > 65535) {
    refuse_write(file_.path(),
                 fmt::format("{} times {} pixels: a GIF has at most 65535 each way", first.width, first.height));
  }
  int error = 0;
  gif_.reset(EGifOpen(
      this, [](GifFileType* gif, const GifByteType* bytes, int count) { return write(gif->UserData, bytes, count); },
      &error));
  require(gif_ != nullptr, error);
  EGifSetGifVersion(gif_of(gif_), true);
  std::array<GifColorType, std::tuple_size_v<Palette>> colors;
  std::ranges::transform(first.palette, colors.begin(), [](const Color& color) {
    return GifColorType{color.red, color.green, color.blue};
  });
  ColorMapObject* const map = GifMakeMapObject(static_cast<int>(colors.size()), colors.data());
  require(map != nullptr, E_GIF_ERR_NOT_ENOUGH_MEM);
  const int done =
      EGifPutScreenDesc(gif_of(gif_), static_cast<int>(first.width), static_cast<int>(first.height), 8, 0, map);
  GifFreeMapObject(map);
  require(done == GIF_OK, gif_of(gif_)->Error);
  constexpr std::string_view repeats = "NETSCAPE2.0";
  constexpr std::array<GifByteType, 3> forever = {1, 0, 0};
  require(EGifPutExtensionLeader(gif_of(gif_), APPLICATION_EXT_FUNC_CODE) == GIF_OK &&
              EGifPutExtensionBlock(gif_of(gif_), static_cast<int>(repeats.size()), repeats.data()) == GIF_OK &&
              EGifPutExtensionBlock(gif_of(gif_), static_cast<int>(forever.size()), forever.data()) == GIF_OK &&
              EGifPutExtensionTrailer(gif_of(gif_)) == GIF_OK,
          gif_of(gif_)->Error);
}

/// Called by giflib, which is written in C. Stores an exception, because it must not pass through giflib.
int GifWriter::write(void* writer, const unsigned char* bytes, int count) {
  auto* const self = static_cast<GifWriter*>(writer);
  try {
    self->file_.write(std::as_bytes(std::span(bytes, static_cast<std::size_t>(count))));
    return count;
  } catch (...) {
    self->failed_ = std::current_exception();
    return 0;
  }
}

void GifWriter::require(bool done, int error) const {
  if (failed_ != nullptr) {
    std::rethrow_exception(failed_);
  }
  if (!done) {
    const char* const why = GifErrorString(error);
    refuse_write(file_.path(), why == nullptr ? "giflib does not say why" : why);
  }
}

void GifWriter::add(const Image& image) {
  const GraphicsControlBlock control = {.DisposalMode = DISPOSE_DO_NOT,
                                        .UserInputFlag = false,
                                        .DelayTime = hundredths_,
                                        .TransparentColor = NO_TRANSPARENT_COLOR};
  std::array<GifByteType, 4> extension{};
  const std::size_t length = EGifGCBToExtension(&control, extension.data());
  require(
      EGifPutExtension(gif_of(gif_), GRAPHICS_EXT_FUNC_CODE, static_cast<int>(length), extension.data()) == GIF_OK &&
          EGifPutImageDesc(gif_of(gif_), 0, 0, static_cast<int>(image.width), static_cast<int>(image.height), false,
                           nullptr) == GIF_OK,
      gif_of(gif_)->Error);
  std::vector<std::uint8_t> pixels = image.pixels;  // giflib's argument is not const
  require(EGifPutLine(gif_of(gif_), pixels.data(), static_cast<int>(pixels.size())) == GIF_OK, gif_of(gif_)->Error);
}

void GifWriter::commit() {
  int error = 0;
  const int done = EGifCloseFile(static_cast<GifFileType*>(gif_.release()), &error);
  require(done == GIF_OK, error);
  file_.commit();
}

}  // namespace shardrun::report
