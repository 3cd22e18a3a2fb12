#include "core/device/cores.h"

#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

void write(const TemporaryFolder& folder, const std::string& path, const std::string& text) {
  std::filesystem::create_directories((folder / path).parent_path());
  write_file(folder / path, text);
}

}  // namespace

TEST_CASE("without a control group's limit the cores have none", "[device]") {
  const TemporaryFolder root;
  CHECK(device::cores_of_control_groups(root.path()) == std::nullopt);

  write(root, "proc/self/cgroup", "0::/a\n");
  write(root, "sys/fs/cgroup/a/cpu.max", "max 100000\n");
  CHECK(device::cores_of_control_groups(root.path()) == std::nullopt);
}

TEST_CASE("a control group's processor time bounds the cores, rounded up", "[device]") {
  const TemporaryFolder root;
  write(root, "proc/self/cgroup", "0::/a/b\n");
  write(root, "sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  write(root, "sys/fs/cgroup/a/cpu.max", "50000 100000\n");  // that of a group above
  CHECK(device::cores_of_control_groups(root.path()) == 1);

  write(root, "sys/fs/cgroup/a/cpu.max", "100001 100000\n");
  CHECK(device::cores_of_control_groups(root.path()) == 2);
}

TEST_CASE("control groups of version 1 bound the cores too", "[device]") {
  const TemporaryFolder root;
  write(root, "proc/self/cgroup", "5:memory:/a\n4:cpu,cpuacct:/a\n");
  write(root, "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n");
  write(root, "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
  CHECK(device::cores_of_control_groups(root.path()) == std::nullopt);

  write(root, "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "20000\n");
  CHECK(device::cores_of_control_groups(root.path()) == 1);
}
