#include <elf.h>
#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>

#include "tests/support/catch.h"
#include "tests/unit/plugins/fixtures.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Contains;

namespace {

const std::filesystem::path rows = std::filesystem::path(SHARDRUN_FIXTURES) / file_of("rows");

/// The error of opening the plugin `x` whose file holds `bytes`.
std::string error_for_bytes(std::string_view bytes) {
  const TemporaryFolder folder;
  write_file(folder / file_of("x").string(), bytes);
  return open_error("x", {folder.path()});
}

template <class Field>
std::string with_field(std::string bytes, std::size_t offset, Field value) {
  std::memcpy(bytes.data() + offset, &value, sizeof(value));
  return bytes;
}

}  // namespace

TEST_CASE("a file that is not a library for this machine is refused before it is loaded", "[plugins]") {
  const std::string good = read_file(rows);
  Elf64_Ehdr header;
  REQUIRE(good.size() > sizeof(header));
  std::memcpy(&header, good.data(), sizeof(header));
  const bool is_arm = header.e_machine == EM_AARCH64;
  const auto other_machine = static_cast<Elf64_Half>(is_arm ? EM_X86_64 : EM_AARCH64);

  CHECK_THAT(error_for_bytes("int main() {}\n"), Contains("does not begin with the ELF signature"));
  CHECK_THAT(error_for_bytes(""), Contains("does not begin with the ELF signature"));
  CHECK_THAT(error_for_bytes(with_field(good, offsetof(Elf64_Ehdr, e_machine), other_machine)),
             Contains(is_arm ? "is built for x86-64 (64-bit, little-endian), but this program for AArch64"
                             : "is built for AArch64 (64-bit, little-endian), but this program for") &&
                 Contains("build the plugin for this machine"));
  CHECK_THAT(error_for_bytes(with_field(good, EI_CLASS, static_cast<unsigned char>(ELFCLASS32))),
             Contains("(32-bit, little-endian), but this program for"));
  CHECK_THAT(error_for_bytes(with_field(good, offsetof(Elf64_Ehdr, e_type), static_cast<Elf64_Half>(ET_EXEC))),
             Contains("its ELF type is 2, expected 3"));
}

TEST_CASE("a file that is cut short anywhere is refused", "[plugins]") {
  const std::string good = read_file(rows);

  CHECK_THAT(error_for_bytes(good.substr(0, 20)), Contains("is cut short: its ELF header should end at byte 64"));
  CHECK_THAT(error_for_bytes(good.substr(0, good.size() / 2)), Contains("is cut short"));
  for (std::size_t size = 64; size < good.size(); size += 509) {
    INFO(size << " of " << good.size() << " bytes");
    CHECK_THAT(error_for_bytes(good.substr(0, size)), Contains("is cut short"));
  }
}

TEST_CASE("offsets that lead out of the file are refused, not followed", "[plugins]") {
  const std::string good = read_file(rows);

  CHECK_THAT(error_for_bytes(with_field(good, offsetof(Elf64_Ehdr, e_shoff), ~Elf64_Off{0})),
             Contains("is cut short: its section headers"));
  CHECK_THAT(error_for_bytes(with_field(good, offsetof(Elf64_Ehdr, e_phoff), ~Elf64_Off{0} - 8)),
             Contains("is cut short: its program headers"));
  CHECK_THAT(error_for_bytes(with_field(good, offsetof(Elf64_Ehdr, e_shnum), Elf64_Half{0})),
             Contains("does not export shardrun_manifest_v1"));
}

TEST_CASE("a file that others may change is not loaded", "[plugins]") {
  using std::filesystem::perms;
  const TemporaryFolder folder;
  const std::filesystem::path file = folder / file_of("rows").string();
  std::filesystem::copy_file(rows, file);
  CHECK(open_error("rows", {folder.path()}) == "nothing");

  SECTION("the file is world-writable") {
    std::filesystem::permissions(file, perms::others_write, std::filesystem::perm_options::add);
    CHECK_THAT(open_error("rows", {folder.path()}),
               Contains(file.string() + " is not trusted: everyone may write to it (mode 0") && Contains("chmod o-w"));
  }
  SECTION("its directory is world-writable") {
    std::filesystem::permissions(folder.path(), perms::others_write, std::filesystem::perm_options::add);
    CHECK_THAT(open_error("rows", {folder.path()}),
               Contains(folder.path().string() + " is not trusted: everyone may write to it"));
  }
  SECTION("a link leads to a world-writable directory") {
    const TemporaryFolder links;
    std::filesystem::create_symlink(file, links / file_of("rows").string());
    CHECK(open_error("rows", {links.path()}) == "nothing");
    std::filesystem::permissions(folder.path(), perms::others_write, std::filesystem::perm_options::add);
    CHECK_THAT(open_error("rows", {links.path()}),
               Contains(folder.path().string() + " is not trusted: everyone may write to it"));
  }
  SECTION("it belongs to a stranger") {
    constexpr uid_t stranger = 54321;
    if (::chown(file.c_str(), stranger, static_cast<gid_t>(-1)) == 0) {
      CHECK_THAT(open_error("rows", {folder.path()}), Contains("is not trusted: it belongs to user 54321"));
    } else {
      WARN("files cannot be given away here: not checked");
    }
  }
}

TEST_CASE("a group-writable file is trusted only if the group is the user's own", "[plugins]") {
  using std::filesystem::perms;
  constexpr gid_t strangers = 54321;
  const TemporaryFolder above;
  const std::filesystem::path folder = above / "plugins";
  std::filesystem::create_directory(folder);
  const std::filesystem::path file = folder / file_of("rows").string();
  std::filesystem::copy_file(rows, file);
  const auto give_to = [](const std::filesystem::path& path, gid_t group) {
    std::filesystem::permissions(path, perms::group_write, std::filesystem::perm_options::add);
    return ::chown(path.c_str(), static_cast<uid_t>(-1), group) == 0;
  };
  if (!give_to(file, strangers)) {
    WARN("files cannot be given away here: not checked");
    return;
  }
  const auto distrusted = [](const std::filesystem::path& path) {
    return Contains(path.string() + " is not trusted: group 54321 may write to it (mode 0");
  };

  CHECK_THAT(open_error("rows", {folder}), distrusted(file));
  REQUIRE(give_to(file, 0));
  CHECK(open_error("rows", {folder}) == "nothing");
  REQUIRE(give_to(folder, strangers));
  CHECK_THAT(open_error("rows", {folder}), distrusted(folder));
  REQUIRE(give_to(folder, 0));
  REQUIRE(give_to(above.path(), strangers));
  CHECK_THAT(open_error("rows", {folder}), distrusted(above.path()));
  std::filesystem::permissions(above.path(), perms::group_write, std::filesystem::perm_options::remove);
  CHECK(open_error("rows", {folder}) == "nothing");
  REQUIRE(::chown(above.path().c_str(), 54321, strangers) == 0);
  CHECK_THAT(open_error("rows", {folder}), Contains(above.path().string() + " is not trusted: it belongs to user"));
}

TEST_CASE("a file whose access control list lets others write is not trusted", "[plugins]") {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder / file_of("rows").string();
  std::filesystem::copy_file(rows, file);
  struct Entry {
    std::uint16_t tag;
    std::uint16_t rights;
    std::uint32_t id;
  };
  constexpr std::uint32_t none = 0xffffffff;
  // The owner, one more user or group, the owning group, the mask, and others.
  const auto set_list = [&](std::uint16_t tag, std::uint32_t id, std::uint16_t rights) {
    std::vector<Entry> entries = {{0x01, 6, none}, {0x04, 4, none}, {0x10, 6, none}, {0x20, 4, none}};
    entries.insert(entries.begin() + (tag == 0x02 ? 1 : 2), Entry{tag, rights, id});
    std::string bytes("\x02\0\0\0", 4);
    bytes.append(reinterpret_cast<const char*>(entries.data()), entries.size() * sizeof(Entry));
    return ::setxattr(file.c_str(), "system.posix_acl_access", bytes.data(), bytes.size(), 0) == 0;
  };
  if (!set_list(0x02, 54321, 4)) {
    WARN("this file system has no access control lists: not checked");
    return;
  }

  CHECK(open_error("rows", {folder.path()}) == "nothing");
  REQUIRE(set_list(0x02, 54321, 6));
  CHECK_THAT(open_error("rows", {folder.path()}), Contains(file.string() + " is not trusted: its access control list"));
  REQUIRE(set_list(0x08, 54321, 6));
  CHECK_THAT(open_error("rows", {folder.path()}), Contains(file.string() + " is not trusted: its access control list"));
  REQUIRE(set_list(0x02, ::geteuid(), 6));
  CHECK(open_error("rows", {folder.path()}) == "nothing");
}

TEST_CASE("a file is trusted if its group has no members, and not if it has others", "[plugins]") {
  const group* const staff = ::getgrnam("staff");
  if (::geteuid() != 0 || staff == nullptr || *staff->gr_mem != nullptr) {
    WARN("there is no group staff without members, or files cannot be given to it: not checked");
    return;
  }
  using std::filesystem::perms;
  const TemporaryFolder folder;
  const std::filesystem::path file = folder / file_of("rows").string();
  std::filesystem::copy_file(rows, file);
  const auto give_to = [&](gid_t group) {
    REQUIRE(::chown(file.c_str(), 0, group) == 0);
    std::filesystem::permissions(file, perms::group_write, std::filesystem::perm_options::add);
  };

  give_to(staff->gr_gid);
  CHECK(open_error("rows", {folder.path()}) == "nothing");
  if (const passwd* const account = ::getpwnam("daemon"); account != nullptr && account->pw_gid != 0) {
    give_to(account->pw_gid);  // it is that account's primary group
    CHECK_THAT(open_error("rows", {folder.path()}), Contains("it has members other than the user"));
  }
}

TEST_CASE("files that a user made under umask 002 are trusted", "[plugins]") {
  // An account that every system has, with a group of its own.
  const passwd* const account = ::getpwnam("daemon");
  if (::geteuid() != 0 || account == nullptr || account->pw_gid == 0) {
    WARN("no other user can be taken on here: not checked");
    return;
  }
  const uid_t user = account->pw_uid;
  const gid_t group = account->pw_gid;
  const TemporaryFolder folder;
  const std::filesystem::path file = folder / file_of("rows").string();
  std::filesystem::copy_file(rows, file);
  using std::filesystem::perms;
  for (const std::filesystem::path& path : {file, folder.path()}) {
    REQUIRE(::chown(path.c_str(), user, group) == 0);
    std::filesystem::permissions(path, perms::group_write, std::filesystem::perm_options::add);
  }
  const auto opens_as_user = [&] {
    const pid_t process = ::fork();
    if (process == 0) {
      const bool taken_on =
          ::setgroups(0, nullptr) == 0 && ::setresgid(group, group, group) == 0 && ::setresuid(user, user, user) == 0;
      ::_exit(taken_on && open_error("rows", {folder.path()}) == "nothing" ? 0 : 1);
    }
    int status = -1;
    ::waitpid(process, &status, 0);
    return status == 0;
  };

  CHECK(opens_as_user());
  CHECK_THAT(open_error("rows", {folder.path()}), Contains("is not trusted"));  // root is another user
  REQUIRE(::chown(file.c_str(), user, 54321) == 0);
  std::filesystem::permissions(file, perms::group_write, std::filesystem::perm_options::add);
  CHECK_FALSE(opens_as_user());
}

TEST_CASE("a plugin that would load libraries from a folder others can write is refused", "[plugins]") {
  const std::string good = read_file(SHARDRUN_NEEDY);
  const std::string own = "$ORIGIN/../needed:$ORIGIN/this-text-is-as-long-as-those-that-the-tests-put-in-its-place";
  const std::size_t at = good.find(own);
  REQUIRE(at != std::string::npos);
  const TemporaryFolder work;
  const TemporaryFolder open_to_all;
  std::filesystem::permissions(open_to_all.path(), std::filesystem::perms::others_write,
                               std::filesystem::perm_options::add);
  std::filesystem::copy_file(SHARDRUN_NEEDED, work / "libneeded.so");
  std::filesystem::create_directory(work / "sub");
  std::filesystem::copy_file(SHARDRUN_NEEDED, work / "sub/libneeded.so");
  const auto error_with = [&](const std::string& runpath) {
    std::string bytes = good;
    REQUIRE(runpath.size() <= own.size());
    bytes.replace(at, own.size(), runpath + std::string(own.size() - runpath.size(), '\0'));
    write_file(work / file_of("needy").string(), bytes);
    const std::filesystem::path before = std::filesystem::current_path();
    std::filesystem::current_path(work.path());
    const std::string error = open_error("needy", {work.path()});
    std::filesystem::current_path(before);
    return error;
  };

  for (const char* path : {"", ":/usr/lib", "/usr/lib:", "/usr/lib::/usr/lib64"}) {
    INFO("RUNPATH '" << path << "'");
    CHECK_THAT(error_with(path),
               Contains("would load libraries from '' (RUNPATH), an empty entry, which stands for the "
                        "working directory"));
  }
  for (const char* path : {"sub", "/usr/lib:./sub", "$ORIGINAL/sub", "../x"}) {
    INFO("RUNPATH '" << path << "'");
    CHECK_THAT(error_with(path), Contains("which is relative to the working directory"));
  }
  CHECK_THAT(error_with(open_to_all.path().string()), Contains("is not trusted: everyone may write to it"));
  CHECK_THAT(error_with("/tmp"), Contains("is not trusted: everyone may write to it"));
  CHECK_THAT(error_with((open_to_all / "not/there").string()), Contains("is not trusted: everyone may write to it"));
  CHECK_FALSE(std::filesystem::exists(work / "needed-was-loaded"));

  CHECK_THAT(error_with("/usr/lib:/not/there"), Contains("cannot be loaded: ") && Contains("libneeded.so"));
  CHECK(error_with("$ORIGIN/sub") == "nothing");
  CHECK(std::filesystem::exists(work / "needed-was-loaded"));
}

TEST_CASE("a plugin whose libraries would load others from such a folder is refused", "[plugins]") {
  using std::filesystem::perms;
  const auto with_runpath = [](std::string bytes, const std::string& own, const std::string& runpath) {
    const std::size_t at = bytes.find(own);
    REQUIRE(at != std::string::npos);
    REQUIRE(runpath.size() <= own.size());
    return bytes.replace(at, own.size(), runpath + std::string(own.size() - runpath.size(), '\0'));
  };
  const std::string rest = ":$ORIGIN/this-text-is-as-long-as-those-that-the-tests-put-in-its-place";
  const std::filesystem::path between = SHARDRUN_BETWEEN;
  const TemporaryFolder work;
  const std::filesystem::path sub = work / "sub";
  std::filesystem::create_directory(sub);
  std::filesystem::copy_file(between / "libdeeper.so", sub / "libdeeper.so");
  std::filesystem::copy_file(between / "libdeeper.so", work / "libdeeper.so");
  write_file(work / file_of("needy").string(),
             with_runpath(read_file(SHARDRUN_NEEDY), "$ORIGIN/../needed" + rest, "$ORIGIN/sub"));
  const auto error_with = [&](const std::string& runpath) {
    write_file(sub / "libneeded.so",
               with_runpath(read_file(between / "libneeded.so"), "$ORIGIN/../between" + rest, runpath));
    const std::filesystem::path before = std::filesystem::current_path();
    std::filesystem::current_path(work.path());
    const std::string error = open_error("needy", {work.path()});
    std::filesystem::current_path(before);
    return error;
  };
  const auto open_to_all = [](const std::filesystem::path& path) {
    std::filesystem::permissions(path, perms::others_write, std::filesystem::perm_options::add);
  };
  const auto closed = [](const std::filesystem::path& path) {
    std::filesystem::permissions(path, perms::others_write, std::filesystem::perm_options::remove);
  };

  CHECK_THAT(error_with(":"), Contains("sub/libneeded.so would load libraries from '' (RUNPATH), an empty entry"));
  CHECK_THAT(error_with("sub"), Contains("which is relative to the working directory"));
  CHECK_THAT(error_with("/usr/$LIB"), Contains("only the dynamic linker knows"));
  std::filesystem::create_symlink("/tmp/not/there", work / "dangling");
  CHECK_THAT(error_with("$ORIGIN/../dangling"), Contains("a link that leads nowhere"));
  CHECK_THAT(error_with("$ORIGIN/../dangling/below"), Contains("a link that leads nowhere"));

  open_to_all(sub / "libdeeper.so");
  CHECK_THAT(error_with("$ORIGIN"), Contains("sub/libneeded.so needs a library that ") &&
                                        Contains("sub/libdeeper.so is not trusted: everyone may write to it"));
  closed(sub / "libdeeper.so");
  const std::filesystem::path variants = sub / "glibc-hwcaps/x86-64-v2";
  std::filesystem::create_directories(variants);
  open_to_all(variants);
  CHECK_THAT(error_with("$ORIGIN"), Contains("x86-64-v2 is not trusted: everyone may write to it"));
  closed(variants);
  std::filesystem::copy_file(between / "libdeeper.so", variants / "libdeeper.so");
  open_to_all(variants / "libdeeper.so");
  CHECK_THAT(error_with("$ORIGIN"), Contains("x86-64-v2/libdeeper.so is not trusted: everyone may write to it"));
  closed(variants / "libdeeper.so");
  CHECK_FALSE(std::filesystem::exists(work / "needed-was-loaded"));
  open_to_all(sub / "libneeded.so");
  CHECK_THAT(open_error("needy", {work.path()}), Contains("sub/libneeded.so is not trusted: everyone may write to it"));
  closed(sub / "libneeded.so");
  CHECK(error_with("$ORIGIN/../sub:/usr/lib") == "nothing");
}

TEST_CASE("a path that is not a regular file is not opened", "[plugins]") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / file_of("folder").string());
  REQUIRE(::mkfifo((folder / file_of("pipe").string()).c_str(), 0600) == 0);
  std::filesystem::create_symlink("/nowhere/at/all.so", folder / file_of("dangling").string());

  CHECK_THAT(open_error("folder", {folder.path()}), Contains("is not a regular file"));
  CHECK_THAT(open_error("pipe", {folder.path()}), Contains("is not a regular file"));
  CHECK_THAT(open_error("dangling", {folder.path()}), Contains("cannot look at") && Contains("No such file"));
}
