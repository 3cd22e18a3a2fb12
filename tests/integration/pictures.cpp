// Pictures of saved fields, and saved states gathered from their parts.

#include <gif_lib.h>
#include <png.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "core/checkpoint/history.h"
#include "core/data/npy.h"
#include "core/report/picture.h"
#include "core/report/run_pictures.h"
#include "tests/integration/program.h"
#include "tests/support/catch.h"

using namespace shardrun::test;
using namespace shardrun::report;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

namespace {

double lightness(const Color& color) {
  const auto linear = [](std::uint8_t channel) { return std::pow(channel / 255.0, 2.2); };
  return 0.2126 * linear(color.red) + 0.7152 * linear(color.green) + 0.0722 * linear(color.blue);
}

Cells cells_with(const Extent& field, const std::vector<double>& values) {
  return cells_of(field, [&](std::int64_t first, std::span<double> to) {
    std::copy_n(values.begin() + first, to.size(), to.begin());
  });
}

/// The number of pixels with a colour.
std::int64_t count(const Image& image, std::int64_t color) {
  return std::count(image.pixels.begin(), image.pixels.end(), static_cast<std::uint8_t>(color));
}

struct Picture {
  std::int64_t width = 0;
  std::int64_t height = 0;
  std::vector<Color> pixels;
};

Picture read_png(const std::filesystem::path& path) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  REQUIRE(png_image_begin_read_from_file(&png, path.c_str()) != 0);
  png.format = PNG_FORMAT_RGB;
  Picture picture = {png.width, png.height, std::vector<Color>(std::size_t{png.width} * png.height)};
  REQUIRE(png_image_finish_read(&png, nullptr, picture.pixels.data(), 0, nullptr) != 0);
  return picture;
}

std::vector<Color> colors_of(const Image& image) {
  std::vector<Color> colors;
  for (const std::uint8_t pixel : image.pixels) {
    colors.push_back(image.palette[pixel]);
  }
  return colors;
}

/// The frames of a GIF.
std::vector<Picture> read_gif(const std::filesystem::path& path) {
  int error = 0;
  const std::unique_ptr<GifFileType, void (*)(GifFileType*)> gif(
      DGifOpenFileName(path.c_str(), &error), [](GifFileType* open) { DGifCloseFile(open, nullptr); });
  REQUIRE(gif != nullptr);
  REQUIRE(DGifSlurp(gif.get()) == GIF_OK);
  std::vector<Picture> frames;
  for (int i = 0; i < gif->ImageCount; ++i) {
    const SavedImage& saved = gif->SavedImages[i];
    Picture frame = {saved.ImageDesc.Width, saved.ImageDesc.Height, {}};
    for (std::int64_t at = 0; at < frame.width * frame.height; ++at) {
      const GifColorType color = gif->SColorMap->Colors[saved.RasterBits[at]];
      frame.pixels.push_back({color.Red, color.Green, color.Blue});
    }
    frames.push_back(std::move(frame));
  }
  return frames;
}

/// Runs a job on two ranks whose field is a plane, and which saves after 4, 8 and 10 steps.
void run_plane(const std::filesystem::path& folder, const std::vector<std::string>& settings) {
  write_file(
      folder / "heat.ini",
      "[job]\ntask = iterate\nthreads = 1\nranks = 2\nstrategy = named\noutput = run\n[sharding]\nx = d\n[model]\n"
      "name = heat2d\nrows = 9\ncolumns = 14\n[iterate]\nsteps = 10\nsave_every = 4\n");
  const Ended ended = run_program(folder, with_settings({"heat.ini"}, settings));
  INFO(ended.err);
  REQUIRE(ended.code == 0);
}

Image expected(const std::filesystem::path& run, std::int64_t step, const std::optional<Scale>& scale = {}) {
  const shardrun::checkpoint::OpenTensor tensor = shardrun::checkpoint::History(run, "temperature").open(step);
  const Cells cells = cells_of({9, 14}, [&](std::int64_t first, std::span<double> to) {
    shardrun::checkpoint::read_numbers(tensor, first, to);
  });
  return draw(cells, "step " + std::to_string(step) + ": temperature",
              {.scale = scale ? *scale : scale_for(bounds_of(cells), ColorMap::sequential)});
}

}  // namespace

TEST_CASE("lightness alone tells the colours of a map apart", "[picture]") {
  const Palette rising = palette_of(ColorMap::sequential);
  const Palette both = palette_of(ColorMap::diverging);
  for (std::size_t i = first_of_map + 1; i < rising.size(); ++i) {
    CHECK(lightness(rising[i]) > lightness(rising[i - 1]));
    const bool is_before_middle = i < first_of_map + map_colors / 2;
    CHECK((lightness(both[i]) > lightness(both[i - 1])) == is_before_middle);
  }
}

TEST_CASE("a large field is drawn by the means of blocks, and what is not finite is grey", "[picture]") {
  std::vector<double> values(2048 * 3);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<double>(i);
  }
  values[2048 * 3 - 1] = std::numeric_limits<double>::quiet_NaN();
  const Cells cells = cells_with({2048, 3}, values);
  CHECK(cells.rows == 1024);
  CHECK(cells.columns == 3);
  CHECK(cells.values[0] == 1.5);  // the mean of 0 and 3
  CHECK(cells.values[4] == 8.5);  // the mean of 7 and 10
  CHECK(std::isnan(cells.values.back()));
  CHECK(cells.not_finite == 1);
  CHECK(bounds_of(cells) == Scale{1.5, 6140.5});

  const Image image = draw(cells, "x", {.scale = scale_for(bounds_of(cells), ColorMap::sequential)});
  CHECK(count(image, grey) == 1);  // a cell is one pixel
}

TEST_CASE("a line is drawn with its extremes, and columns that are not finite are grey", "[picture]") {
  std::vector<double> values(100'000, 0.0);
  values[50'000] = 1;
  const Cells cells = cells_with({1, 100'000}, values);
  CHECK(bounds_of(cells) == Scale{0, 1});
  const Image image = draw(cells, "x", {.scale = {0, 1}});
  CHECK(count(image, ink) > 320 + 600);  // the curve's peak reaches from the lower end to the upper one
  CHECK(count(image, grey) == 0);
  values[0] = std::numeric_limits<double>::infinity();
  const Image faulty = draw(cells_with({1, 100'000}, values), "x", {.scale = {0, 1}});
  CHECK(count(faulty, grey) > 300);
}

TEST_CASE("scales have a width, and ticks are round numbers within them", "[picture]") {
  CHECK(scale_for(std::nullopt, ColorMap::sequential) == Scale{0, 1});
  CHECK(scale_for(Scale{0, 0}, ColorMap::sequential) == Scale{-0.5, 0.5});
  CHECK(scale_for(Scale{4, 4}, ColorMap::sequential) == Scale{2, 6});
  CHECK(scale_for(Scale{-1, 3}, ColorMap::diverging) == Scale{-3, 3});
  CHECK(ticks_of({0, 10}, 6) == std::vector<double>{0, 2, 4, 6, 8, 10});
  CHECK(ticks_of({-0.9, 1.1}, 2) == std::vector<double>{0, 1});
}

TEST_CASE("dimensions of one element do not count, and a picture has at most two others", "[picture]") {
  CHECK(extent_of({7})->is_line());
  CHECK(extent_of({7, 1})->columns == 7);
  CHECK(extent_of({1, 4, 5})->rows == 4);
  CHECK(extent_of({})->columns == 1);
  CHECK_FALSE(extent_of({2, 3, 4}));
  CHECK_FALSE(extent_of({3, 0}));
}

TEST_CASE("a run draws what it saves, and a later run removes the pictures", "[program][picture]") {
  const TemporaryFolder folder;
  run_plane(folder.path(), {"iterate.pictures=temperature"});
  const std::filesystem::path pictures = folder / "run/pictures";
  for (const auto& [name, step] : {std::pair{"temperature-000004.png", 4}, std::pair{"temperature-000008.png", 8},
                                   std::pair{"temperature.png", 10}}) {
    INFO(name);
    const Image image = expected(folder / "run", step);
    const Picture picture = read_png(pictures / name);
    CHECK(picture.width == image.width);
    CHECK((picture.pixels == colors_of(image)));
  }
  CHECK((read_png(pictures / "temperature.png").pixels != read_png(pictures / "temperature-000004.png").pixels));
  CHECK(read_gif(pictures / "temperature.gif").size() == 3);
  CHECK_THAT(run_program(folder.path(), with_settings({"plan", "heat.ini"}, {"iterate.pictures=temperature"})).out,
             Contains("pictures at most"));
  run_plane(folder.path(), {});
  CHECK_FALSE(std::filesystem::exists(pictures));
}

TEST_CASE("a run without steps draws its fields, and no outputs", "[program][picture]") {
  const TemporaryFolder folder;
  write_file(folder / "life.ini", "[job]\ntask = iterate\noutput = run\n[plugins]\npath = " SHARDRUN_EXAMPLE_PROGRAMS
                                  "\n[model]\nname = life\n[iterate]\nsteps = 0\npictures = cells, alive\n");
  REQUIRE(run_program(folder.path(), {"life.ini"}).code == 0);
  CHECK(std::filesystem::exists(folder / "run/pictures/cells.png"));
  CHECK_FALSE(std::filesystem::exists(folder / "run/pictures/alive.png"));
  REQUIRE(run_program(folder.path(), with_settings({"life.ini"}, {"iterate.steps=3", "iterate.save_every=1"})).code ==
          0);
  CHECK(read_gif(folder / "run/pictures/alive.gif").size() == 3);
}

TEST_CASE("picture draws a step, and an animation with one scale for all steps", "[program][picture]") {
  const TemporaryFolder folder;
  run_plane(folder.path(), {});
  const auto picture = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"picture", "run", "temperature"});
    return run_program(folder.path(), words);
  };
  REQUIRE(picture({"--step", "4", "--to", "x.png", "--range", "0,2"}).code == 0);
  CHECK((read_png(folder / "x.png").pixels == colors_of(expected(folder / "run", 4, Scale{0, 2}))));
  const Ended named = picture({});
  CHECK(named.out == "run/pictures/temperature-000010.png\n");
  const std::filesystem::path drawn = folder / "run/pictures/temperature-000010.png";
  CHECK(std::filesystem::exists(drawn));
  write_file(drawn, "an earlier picture");
  REQUIRE(picture({}).code == 0);  // in the run's own folder
  CHECK((read_png(drawn).pixels == colors_of(expected(folder / "run", 10, std::nullopt))));

  const Ended again = picture({"--to", "x.png"});
  CHECK(again.code == 2);
  CHECK_THAT(again.err, Contains("'x.png' exists: choose another name, or replace it with --replace"));
  REQUIRE(picture({"--to", "x.png", "--replace"}).code == 0);

  REQUIRE(picture({"--all", "--to", "x.gif"}).code == 0);
  std::optional<Scale> scale;
  for (const std::int64_t step : {4, 8, 10}) {
    const shardrun::checkpoint::OpenTensor tensor =
        shardrun::checkpoint::History(folder / "run", "temperature").open(step);
    std::vector<double> values(9 * 14);
    shardrun::checkpoint::read_numbers(tensor, 0, values);
    const auto [least, greatest] = std::minmax_element(values.begin(), values.end());
    scale = joined(scale, Scale{*least, *greatest});
  }
  const std::vector<Picture> frames = read_gif(folder / "x.gif");
  REQUIRE(frames.size() == 3);
  CHECK((frames[1].pixels == colors_of(expected(folder / "run", 8, scale))));

  CHECK_THAT(picture({"--step", "5"}).err, Contains("was not saved after step 5, but after 4, 8, 10"));
  CHECK_THAT(picture({"--all", "--to", "x.png"}).err, Contains("expected a name that ends in .gif, found 'x.png'"));
  CHECK_THAT(picture({"--over-time"}).err, Contains("a picture over time shows a field of one dimension"));
  CHECK_THAT(picture({"--range", "2,1"}).err, Contains("the lower one first"));
  CHECK_THAT(picture({"--colors", "jet"}).err, Contains("expected sequential or diverging, found 'jet'"));
  CHECK_THAT(picture({"--fps", "3"}).err, Contains("--fps has no effect without --all"));
  const Ended unknown = run_program(folder.path(), {"picture", "run", "temperatur"});
  CHECK(unknown.code == 2);
  CHECK_THAT(unknown.err, Contains("did you mean 'temperature'?"));
}

TEST_CASE("pictures of a job that cannot be drawn are refused before anything starts", "[program][picture]") {
  const TemporaryFolder folder;
  write_file(folder / "heat.ini",
             "[job]\ntask = iterate\noutput = run\n[model]\nname = heat1d\ncells = 20\n[iterate]\nsteps = 4\n"
             "pictures = temperatures\n");
  const Ended ended = run_program(folder.path(), {"heat.ini"});
  CHECK(ended.code == 2);
  CHECK_THAT(ended.err, Contains("heat.ini:9: [iterate] pictures: model heat1d has no field or output 'temperatures' "
                                 "(did you mean 'temperature'?)"));
  CHECK_FALSE(std::filesystem::exists(folder / "run"));
}

TEST_CASE("a line over time has a row for each saved step, the last at the top", "[program][picture]") {
  const TemporaryFolder folder;
  write_file(folder / "heat.ini",
             "[job]\ntask = iterate\noutput = run\n[model]\nname = heat1d\ncells = 512\n[iterate]\nsteps = 300\n"
             "save_every = 100\n");
  REQUIRE(run_program(folder.path(), {"heat.ini"}).code == 0);
  REQUIRE(run_program(folder.path(), {"picture", "run", "temperature", "--over-time", "--to", "x.png"}).code == 0);
  const Picture picture = read_png(folder / "x.png");
  const Palette palette = palette_of(ColorMap::sequential);
  // The bump is highest in its middle after the first 100 steps.
  const auto first = std::find(picture.pixels.begin(), picture.pixels.end(), palette.back());
  REQUIRE(first != picture.pixels.end());
  std::int64_t last_row = 0;
  for (std::int64_t i = 0; i < picture.width * picture.height; ++i) {
    const bool is_in_frame = i % picture.width < 600;
    last_row =
        is_in_frame && picture.pixels[static_cast<std::size_t>(i)] == palette.back() ? i / picture.width : last_row;
  }
  CHECK(last_row > picture.height / 2);
}

TEST_CASE("gather gives the whole of a state, whatever layout saved it", "[program][picture]") {
  const JobFolder job;
  REQUIRE(job.run({"job.ranks=2", "job.strategy=zero3", "train.steps=3", "checkpoint.every=2"}).code == 0);
  const shardrun::checkpoint::SafetensorsFile weights(job.path() / "run/weights.safetensors");
  const std::string name = "layer.0/mlp/up/weights";
  const Ended ended = run_program(job.path(), {"gather", "run", name, "--to", "w.npy"});
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  CHECK_THAT(ended.out, StartsWith(name + " F32 ["));
  const shardrun::data::NpyArray array{shardrun::files::SteadyFile(job.path() / "w.npy")};
  CHECK(array.shape() == weights.at(name).info.shape);
  std::vector<std::byte> bytes(weights.at(name).bytes.size());
  array.read_bytes(0, bytes);
  CHECK(std::memcmp(bytes.data(), weights.at(name).bytes.data(), bytes.size()) == 0);
  // Moments can be gathered, too, also those of an earlier step.
  REQUIRE(run_program(job.path(), {"gather", "run", "second_moment/" + name, "--step", "2", "--to", "m.npy"}).code ==
          0);
  const Ended other = run_program(job.path(), {"gather", "run", "layer.0/mlp/up/weight"});
  CHECK(other.code == 2);
  CHECK_THAT(other.err, Contains("did you mean 'layer.0/mlp/up/weights'?"));
  CHECK(run_program(job.path(), {"gather", "run", name, "--to", "w.csv"}).code == 2);
}

TEST_CASE("gather reads weights, and replaces a file only if it is told to", "[program][picture]") {
  const JobFolder job;
  REQUIRE(job.run({"train.steps=3"}).code == 0);
  const std::string name = "layer.0/mlp/up/weights";
  const auto gather = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "gather");
    return run_program(job.path(), words);
  };
  const Ended of_run = gather({"run", name, "--to", "w.npy"});
  INFO(of_run.err);
  REQUIRE(of_run.code == 0);
  CHECK_THAT(of_run.out, Contains(" of step 3, "));
  const std::string array = read_file(job.path() / "w.npy");
  const Ended again = gather({"run", name, "--to", "w.npy"});
  CHECK(again.code == 2);
  CHECK_THAT(again.err, Contains("'w.npy' exists: choose another name, or replace it with --replace"));
  write_file(job.path() / "w.npy", "");
  const Ended of_file = gather({"run/weights.safetensors", name, "--to", "w.npy", "--replace"});
  CHECK(of_file.code == 0);
  CHECK_THAT(of_file.out, !Contains("of step"));  // the file does not tell its step
  CHECK(read_file(job.path() / "w.npy") == array);
  CHECK_THAT(gather({"run", name, "--replace"}).err, Contains("--replace has no effect without --to"));
  CHECK_THAT(gather({"run", "nobody"}).err, Contains("it has ") && Contains(name));
}

TEST_CASE("gather prints rows, and the numbers read back are the same", "[program][picture]") {
  const TemporaryFolder folder;
  run_plane(folder.path(), {});
  const Ended ended = run_program(folder.path(), {"gather", "run", "temperature", "--step", "8"});
  REQUIRE(ended.code == 0);
  CHECK_THAT(ended.out, StartsWith("# temperature F32 [9, 14] of step 8\n"));
  CHECK(std::count(ended.out.begin(), ended.out.end(), '\n') == 1 + 9);
  std::istringstream text(ended.out.substr(ended.out.find('\n')));
  const shardrun::checkpoint::OpenTensor tensor = shardrun::checkpoint::History(folder / "run", "temperature").open(8);
  std::vector<double> values(9 * 14);
  shardrun::checkpoint::read_numbers(tensor, 0, values);
  for (const double value : values) {
    float printed = 0;
    REQUIRE(text >> printed);
    CHECK(printed == static_cast<float>(value));
  }
}
