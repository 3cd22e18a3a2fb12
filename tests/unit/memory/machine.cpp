#include "core/memory/machine.h"

#include <string>

#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Matchers::Contains;

namespace {

constexpr std::uint64_t mebi = 1024 * 1024;

/// The files of an invented machine.
class Machine {
 public:
  Machine() { write("proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable: 8388608 kB\n"); }

  void write(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = folder_.path() / name;
    std::filesystem::create_directories(path.parent_path());
    write_file(path, text);
  }
  /// Writes the kernel's texts about this process's control group and about what is mounted.
  void put(const std::string& cgroup, const std::string& mountinfo) const {
    write("proc/self/cgroup", cgroup);
    write("proc/self/mountinfo", mountinfo);
  }
  /// Adds a control group of version 2.
  void group(const std::string& path, const std::string& max, std::uint64_t current, std::uint64_t files = 0) const {
    write(path + "/memory.max", max + "\n");
    write(path + "/memory.current", std::to_string(current) + "\n");
    write(path + "/memory.stat", "anon 5\nfile 7\ninactive_file " + std::to_string(files / 2) + "\nactive_file " +
                                     std::to_string(files / 2) + "\n");
  }
  /// Adds a control group of version 1.
  void group_1(const std::string& path, const std::string& limit, std::uint64_t usage) const {
    write(path + "/memory.limit_in_bytes", limit + "\n");
    write(path + "/memory.usage_in_bytes", std::to_string(usage) + "\n");
    write(path + "/memory.stat", "inactive_file 5\ntotal_inactive_file 1048576\ntotal_active_file 0\n");
  }

  [[nodiscard]] memory::MemoryRoom room() const { return memory::available_memory(folder_.path()).value(); }
  [[nodiscard]] const std::filesystem::path& root() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

constexpr const char* mount_2 = "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

}  // namespace

TEST_CASE("without control groups the kernel's figure is the available memory", "[memory]") {
  const Machine machine;
  CHECK(machine.room().bytes == 8192 * mebi);
  CHECK(memory::to_string(machine.room(), "8 GiB", "") == "this machine has 8 GiB available");
  CHECK_FALSE(memory::available_memory(machine.root() / "nothing").has_value());
}

TEST_CASE("a process is counted with this one's own memory and 3 MiB", "[memory]") {
  const Machine machine;
  CHECK(memory::process_bytes(machine.root()) == 3 * mebi);
  machine.write("proc/self/status", "Name:\tshardrun\nVmRSS:\t99999 kB\nRssAnon:\t    2048 kB\n");
  CHECK(memory::process_bytes(machine.root()) == 5 * mebi);
  CHECK(memory::process_bytes() > 3 * mebi);
}

TEST_CASE("the process's own control group bounds the memory, less what is used in it", "[memory]") {
  const Machine machine;
  machine.put("0::/user.slice/job.scope\n", mount_2);
  machine.group("sys/fs/cgroup/user.slice/job.scope", std::to_string(100 * mebi), 30 * mebi);
  machine.group("sys/fs/cgroup/user.slice", "max", 0);
  const memory::MemoryRoom room = machine.room();
  CHECK(room.bytes == 70 * mebi);
  CHECK(room.limit == 100 * mebi);
  CHECK(memory::to_string(room, "70 MiB", "100 MiB") ==
        "the control group of this process (/sys/fs/cgroup/user.slice/job.scope/memory.max) leaves 70 MiB of its 100 "
        "MiB");
}

TEST_CASE("cached files that the kernel can drop count as available", "[memory]") {
  const Machine machine;
  machine.put("0::/job\n", mount_2);
  machine.group("sys/fs/cgroup/job", std::to_string(100 * mebi), 90 * mebi, 40 * mebi);
  CHECK(machine.room().bytes == 50 * mebi);
}

TEST_CASE("a control group above bounds the memory if it leaves less", "[memory]") {
  const Machine machine;
  machine.put("0::/a/b/c\n", mount_2);
  machine.group("sys/fs/cgroup/a/b/c", std::to_string(300 * mebi), 0);
  machine.group("sys/fs/cgroup/a/b", "max", 0);
  machine.group("sys/fs/cgroup/a", std::to_string(200 * mebi), 50 * mebi);
  CHECK(machine.room().bytes == 150 * mebi);
  CHECK_THAT(machine.room().name, Contains("(/sys/fs/cgroup/a/memory.max)"));
}

TEST_CASE("a group over its limit leaves nothing", "[memory]") {
  const Machine machine;
  machine.put("0::/a\n", mount_2);
  machine.group("sys/fs/cgroup/a", std::to_string(10 * mebi), 50 * mebi);
  CHECK(machine.room().bytes == 0);
}

TEST_CASE("in a namespace the process's group is the top of the mount", "[memory]") {
  const std::string cgroup = GENERATE("0::/\n", "0::/../../elsewhere\n");
  const Machine machine;
  machine.put(cgroup, mount_2);
  machine.group("sys/fs/cgroup", std::to_string(64 * mebi), 0);
  CHECK(machine.room().bytes == 64 * mebi);
}

TEST_CASE("a mount that begins at a group is counted from there, and one of another group is passed over", "[memory]") {
  const Machine machine;
  machine.put("0::/docker/abc/job\n",
              "40 23 0:28 /docker/other /mnt/other rw - cgroup2 cgroup2 rw\n"
              "41 23 0:28 /docker/abc /sys/fs/with\\040space rw - cgroup2 cgroup2 rw\n");
  machine.group("mnt/other", std::to_string(1 * mebi), 0);
  machine.group("sys/fs/with space/job", std::to_string(33 * mebi), 0);
  CHECK(machine.room().bytes == 33 * mebi);
}

TEST_CASE("control groups of version 1 have files of their own, and a large number for no limit", "[memory]") {
  const Machine machine;
  machine.put("5:cpu,cpuacct:/x\n4:memory:/process_api/1234\n0::/\n",
              "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
              "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
              "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  machine.group_1("sys/fs/cgroup/memory", "9223372036854771712", 0);
  machine.group_1("sys/fs/cgroup/memory/process_api/1234", std::to_string(50 * mebi), 11 * mebi);
  CHECK(machine.room().bytes == 40 * mebi);
  CHECK_THAT(machine.room().name, Contains("memory/process_api/1234/memory.limit_in_bytes"));
}

TEST_CASE("memory.high bounds memory at full speed, and is no limit", "[memory]") {
  const Machine machine;
  machine.put("0::/a\n", mount_2);
  machine.group("sys/fs/cgroup/a", "max", 10 * mebi);
  CHECK_FALSE(memory::memory_at_full_speed(machine.root()).has_value());
  machine.write("sys/fs/cgroup/a/memory.high", std::to_string(20 * mebi));
  CHECK(memory::memory_at_full_speed(machine.root()).value().bytes == 10 * mebi);
  CHECK(machine.room().bytes == 8192 * mebi);
}
