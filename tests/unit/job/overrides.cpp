#include <string>

#include "tests/unit/job/support.h"

using namespace shardrun;
using test::minimal;
using test::parse;

namespace {

std::string usage(const std::vector<std::string>& overrides) {
  return test::refusal(ErrorCode::usage, [&] { return parse(minimal, overrides); });
}

}  // namespace

TEST_CASE("an override replaces, adds, and makes a section", "[job]") {
  const job::Job job = parse(minimal, {"train.steps=20", "train.clip = 1.5", "mesh.data=1"});

  CHECK(job.train.steps == 20);
  CHECK(job.train.clip == 1.5);
  CHECK(job.mesh == std::vector<job::MeshAxis>{{"data", 1}});
  CHECK(job.where("train", "steps") == "--set train.steps");
  CHECK(job.where("model", "width") == "toy.ini:3");
}

TEST_CASE("the value of an override is taken literally", "[job]") {
  CHECK(parse(minimal, {"model.note=a ; \"b\" # c"}).model.options.text("note") == "a ; \"b\" # c");
  CHECK(parse(minimal, {"model.note=a.b=c"}).model.options.text("note") == "a.b=c");
  CHECK(parse(minimal, {"model.note="}).model.options.text("note").empty());
}

TEST_CASE("errors in an override name it", "[job]") {
  CHECK(test::refusal(minimal, {"train.steps=1k"}) ==
        "--set train.steps: [train] steps = 1k: is not an integer; write its digits alone, without unit, decimal point "
        "or exponent");
  CHECK(test::refusal(minimal, {"train.setps=1"})
            .find("--set train.setps: [train] has no key 'setps' (did you mean "
                  "'steps'?)") == 0);
  CHECK(test::refusal(minimal, {"trian.steps=1"})
            .find("--set trian.steps: there is no section [trian] (did you mean "
                  "'train'?)") == 0);
  CHECK(test::refusal(minimal, {"data.batch="}) ==
        "--set data.batch: [data] batch = : has no value; give an integer, at least 1 and at most 2147483647, or leave "
        "the key out");
  CHECK(test::refusal(minimal, {"mesh.data=4"}) ==
        "--set mesh.data: the mesh (data 4) has 4 places for [job] ranks = 1 (the default); make the product of its "
        "sizes equal to ranks, or set ranks = auto, which is that product");
}

TEST_CASE("an override without the form section.key=value is bad usage", "[job]") {
  CHECK(usage({"train.steps"}) ==
        "--set train.steps: is not of the form section.key=value, as in --set train.steps=100");
  CHECK(usage({"steps=1"}) == "--set steps=1: is not of the form section.key=value, as in --set train.steps=100");
  CHECK(usage({"steps=1.5"}).find("is not of the form") != std::string::npos);
  CHECK(usage({"train=1.5"}).find("is not of the form") != std::string::npos);
  CHECK(usage({""}).find("is not of the form") != std::string::npos);
  CHECK(usage({".steps=1"}).find("names no section or no key") != std::string::npos);
  CHECK(usage({"train.=1"}).find("names no section or no key") != std::string::npos);
  CHECK(usage({"model.note=\xFF"}).find("not UTF-8") != std::string::npos);
  CHECK(usage({"model.note=a\nb"}).find("--set model.note=a\\x0ab: has a control character") == 0);
  CHECK(usage({"model.note=" + std::string(1 << 17, 'x')}).find("is longer than") != std::string::npos);
}

TEST_CASE("an override's key follows its last point", "[job]") {
  CHECK(test::refusal(minimal, {"transport.pigeon.speed=1.5"}).find("--set transport.pigeon.speed: ") == 0);
  CHECK(test::refusal(minimal, {"transport.pigeon.speed=1.5"}).find("[transport.pigeon]") != std::string::npos);
}

TEST_CASE("a key can be overridden once", "[job]") {
  CHECK(usage({"train.steps=1", "train.steps=1"}) ==
        "--set train.steps=1: the same key is set twice on the command line; keep one of them");
}

TEST_CASE("an override of [sharding] names tensors, which may have dots", "[job]") {
  const job::Job job = parse(minimal + "[sharding]\nbatch = data\n", {"sharding.layer.*/mlp/up/weights = - | model"});
  REQUIRE(job.sharding.size() == 2);
  CHECK(job.sharding[1].key == "layer.*/mlp/up/weights");
  CHECK(job.sharding[1].value == "- | model");
  CHECK(job.where("sharding", "layer.*/mlp/up/weights") == "--set sharding.layer.*/mlp/up/weights");
}
