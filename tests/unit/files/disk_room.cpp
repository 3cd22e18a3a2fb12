#include "core/files/disk_room.h"

#include <unistd.h>

#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Matchers::Contains;

TEST_CASE("the reason why a folder cannot be written is named", "[files]") {
  const TemporaryFolder folder;
  CHECK(files::why_unwritable(folder.path()).empty());
  CHECK(files::why_unwritable(folder / "made/later").empty());
  CHECK(std::filesystem::is_empty(folder.path()));
  write_file(folder / "file", "");
  CHECK_THAT(files::why_unwritable(folder / "file"), Contains("file' is not a folder"));
  CHECK_THAT(files::why_unwritable(folder / "file/below"), Contains("file/below': Not a directory"));
  std::filesystem::create_symlink("nowhere", folder / "link");
  CHECK_THAT(files::why_unwritable(folder / "link"), Contains("link' is a link that leads nowhere"));
  if (::geteuid() == 0) {
    WARN("permissions are not tested, because they do not bind root");
    return;
  }
  std::filesystem::permissions(folder.path(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  CHECK_THAT(files::why_unwritable(folder / "new"), Contains("': Permission denied"));
  std::filesystem::permissions(folder.path(), std::filesystem::perms::owner_all);
}
