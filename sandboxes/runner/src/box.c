#define _GNU_SOURCE
#include "box.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "filter.h"
#include "guard.h"
#include "image.h"
#include "mounts.h"

enum { PATH_LIMIT = 4096, FILTER_LIMIT = 32 << 10, SMALL = 64 << 10, SHARED_MEMORY = 64 << 20 };

/* ---- the root: put together at /new, with the host's at /old ---------------------------------------------------- */

static int base; /* the folder that holds /new and /old */

static const char *inside(const char *path) {
    static char at[PATH_LIMIT];
    if (snprintf(at, sizeof at, "/new%s", path) >= (int)sizeof at) {
        errno = ENAMETOOLONG;
        plan_fail("cannot make", path);
    }
    return at;
}

static void make_folders(const char *path) {
    char at[PATH_LIMIT];
    snprintf(at, sizeof at, "%s", path);
    for (char *slash = strchr(at + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(at, 0755); /* what cannot be made shows at the last one */
        *slash = '/';
    }
    if (mkdir(at, 0755) && errno != EEXIST) plan_fail("cannot make", path);
    int made = open(at, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (made < 0) plan_fail("cannot use as a folder", path);
    close(made);
}

static void make_folder_of(const char *path) {
    char parent[PATH_LIMIT];
    snprintf(parent, sizeof parent, "%s", path);
    char *slash = strrchr(parent, '/');
    if (slash == parent) return;
    *slash = 0;
    make_folders(parent);
}

static void write_file(const char *path, const char *text) {
    make_folder_of(path);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (file < 0 || write(file, text, strlen(text)) < 0) plan_fail("cannot write", path);
    close(file);
}

static void bind_read_only(const char *source, const char *path) {
    char old[PATH_LIMIT];
    struct stat status;
    snprintf(old, sizeof old, "/old%s", source);
    if (stat(old, &status)) plan_fail("cannot find", source);
    if (S_ISDIR(status.st_mode)) make_folders(path);
    else write_file(path, "");
    mount_read_only(old, path);
}

static void link_to(const char *target, const char *path) {
    make_folder_of(path);
    if (symlink(target, path) && errno != EEXIST) plan_fail("cannot link", path);
}

static void set_mode(const char *mode, const char *path) {
    if (chmod(path, (mode_t)strtoul(mode, NULL, 8))) plan_fail("cannot set the mode of", path);
}

static void folder(const char *mode, const char *path) {
    make_folders(path);
    set_mode(mode, path);
}

static void own(const char *path) {
    if (chown(path, INSIDE_ID, INSIDE_ID)) plan_fail("cannot set the owner of", path);
}

/* What a container hides of /proc: hardware, keys, timers; and what would change the host. */
static void close_proc(void) {
    static const char *const read_only[] = {"sys", "bus", "fs", "irq", "sysrq-trigger"};
    static const char *const empty[] = {"acpi", "scsi"};
    static const char *const hidden[] = {"kcore", "keys", "key-users", "timer_list", "latency_stats", "sched_debug",
                                         "kallsyms", "kmsg", "kpagecount", "kpageflags", "interrupts"};
    char path[64];
    for (size_t i = 0; i < sizeof read_only / sizeof *read_only; i++) {
        snprintf(path, sizeof path, "/new/proc/%s", read_only[i]);
        if (!access(path, F_OK)) mount_read_only(path, path);
    }
    for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) {
        snprintf(path, sizeof path, "/new/proc/%s", empty[i]);
        if (!access(path, F_OK)) mount_tmpfs(path, SMALL, 0555, MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC);
    }
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++) {
        snprintf(path, sizeof path, "/new/proc/%s", hidden[i]);
        if (!access(path, F_OK)) mount_or_fail("/new/dev/null", path, NULL, MS_BIND, NULL);
    }
}

static void make_dev(void) {
    static const char *const devices[] = {"null", "zero", "full", "random", "urandom", "tty"};
    make_folders("/new/dev");
    mount_tmpfs("/new/dev", SMALL, 0755, MS_NOSUID | MS_NOEXEC);
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        char source[64], target[64];
        snprintf(source, sizeof source, "/old/dev/%s", devices[i]);
        snprintf(target, sizeof target, "/new/dev/%s", devices[i]);
        write_file(target, "");
        mount_or_fail(source, target, NULL, MS_BIND, NULL);
    }
    make_folders("/new/dev/pts");
    mount_or_fail("devpts", "/new/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620");
    make_folders("/new/dev/shm");
    mount_tmpfs("/new/dev/shm", SHARED_MEMORY, 01777, MS_NOSUID | MS_NODEV);
    link_to("pts/ptmx", "/new/dev/ptmx");
    link_to("/proc/self/fd", "/new/dev/fd");
    link_to("fd/0", "/new/dev/stdin");
    link_to("fd/1", "/new/dev/stdout");
    link_to("fd/2", "/new/dev/stderr");
}

static void refuse_link(const char *path) {
    struct stat status;
    if (lstat(path, &status) || !S_ISLNK(status.st_mode)) return;
    errno = ELOOP;
    plan_fail("cannot mount over a link of the image", path);
}

static void make_system(void) {
    refuse_link("/new/proc");
    refuse_link("/new/dev");
    make_folders("/new/proc");
    if (mount("proc", "/new/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL))
        plan_fail("cannot mount /proc, as in a container that masks its own", NULL);
    make_dev();
    close_proc();
}

/* With the new root as this process's own: a link of the image leads to where it will in the box, never to the host. */
static void take_step_inside(const struct step *step) {
    if (chroot("/new") || chdir("/")) plan_fail("cannot enter", "/new");
    if (!strcmp(step->word, "link")) link_to(step->first, step->second);
    else if (!strcmp(step->word, "folder")) folder(step->first, step->second);
    else if (!strcmp(step->word, "file")) write_file(step->second, step->first);
    else if (!strcmp(step->word, "mode")) set_mode(step->first, step->second);
    else own(step->first);
    if (fchdir(base) || chroot(".")) plan_fail("cannot leave", "/new");
}

static void take_step(const struct step *step) {
    if (!strcmp(step->word, "bind")) bind_read_only(step->first, inside(step->second));
    else if (!strcmp(step->word, "system")) make_system();
    else take_step_inside(step);
}

/* The first pivot makes room beside the host's root, so that sources and targets can never cover each other. */
static void leave_host_root(const struct plan *plan) {
    int image = plan->image && plan->id_count ? image_take() : -1;
    mount_or_fail(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
    mount_tmpfs(BASE, plan->disk, 0755, MS_NOSUID | MS_NODEV);
    if (mkdir(BASE "/old", 0755) || mkdir(BASE "/new", 0755)) plan_fail("cannot make a folder in", BASE);
    if (syscall(SYS_pivot_root, BASE, BASE "/old") || chdir("/")) plan_fail("cannot pivot the root", NULL);
    if (image >= 0) {
        mount_put(image, "/new");
    } else if (plan->image) {
        /* By a name of ours: in the options of an overlay a colon or a comma of the image's path would mean something. */
        char lower[PATH_LIMIT];
        snprintf(lower, sizeof lower, "/old%s", plan->image);
        if (mkdir("/lower", 0755)) plan_fail("cannot make", "/lower");
        mount_or_fail(lower, "/lower", NULL, MS_BIND | MS_REC, NULL);
        mount_overlay("/lower", "", true);
        mount_or_fail("/root", "/new", NULL, MS_BIND | MS_REC, NULL);
    } else {
        mount_tmpfs("/new", plan->disk, 0755, MS_NOSUID | MS_NODEV);
    }
    base = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
}

static void enter_new_root(void) {
    if (umount2("/old", MNT_DETACH)) plan_fail("cannot leave the host's root", NULL);
    if (chdir("/new") || syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH) || chdir("/"))
        plan_fail("cannot enter the root of the box", NULL);
}

static void make_root(const struct plan *plan) {
    umask(0);
    leave_host_root(plan);
    for (int i = 0; i < plan->step_count; i++) take_step(&plan->steps[i]);
    close(base);
    enter_new_root();
    umask(022);
}

/* ---- rights ----------------------------------------------------------------------------------------------------- */

static void raise_loopback(void) {
    int any = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq loopback = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    if (any < 0 || ioctl(any, SIOCSIFFLAGS, &loopback)) plan_fail("cannot raise the loopback interface", NULL);
    close(any);
}

/* The root of a box with many ids may still change owners and users; nobody else keeps anything. */
static uint64_t kept_capabilities(const struct plan *plan) {
    static const int kept[] = {CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_FSETID, CAP_KILL, CAP_SETGID, CAP_SETUID};
    uint64_t mask = 0;
    for (size_t i = 0; plan->id_count && i < sizeof kept / sizeof *kept; i++) mask |= UINT64_C(1) << kept[i];
    return mask;
}

static void give_up_capabilities(const struct plan *plan) {
    uint64_t kept = kept_capabilities(plan);
    for (int capability = 0; capability < 64; capability++)
        if (!(kept >> capability & 1) && prctl(PR_CAPBSET_DROP, capability) && errno != EINVAL)
            plan_fail("cannot give up capabilities", NULL);
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2] = {{(uint32_t)kept, (uint32_t)kept, 0},
                                             {(uint32_t)(kept >> 32), (uint32_t)(kept >> 32), 0}};
    if (syscall(SYS_capset, &header, data)) plan_fail("cannot give up capabilities", NULL);
}

static void filter_by(int file) {
    static char program[FILTER_LIMIT];
    ssize_t length = pread(file, program, sizeof program, 0);
    if (length <= 0) plan_fail("cannot read the seccomp filter", NULL);
    if (!filter_calls(program, (size_t)length)) plan_fail("cannot filter system calls", NULL);
    close(file);
}

static void give_up_rights(const struct plan *plan) {
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) plan_fail("cannot give up new rights", NULL);
    give_up_capabilities(plan);
    if (plan->seccomp >= 0) filter_by(plan->seccomp);
}

/* ---- entering ---------------------------------------------------------------------------------------------------- */

static int exit_code(int wait_status) {
    return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
}

static _Noreturn void wait_for(pid_t child) {
    int status = 0;
    /* The wire is the child's alone: its end must be seen when the child ends. */
    close(0);
    close(1);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    _exit(exit_code(status));
}

static void become_root_of_ids(const struct plan *plan) {
    if (!plan->id_count) return;
    if (setresgid(0, 0, 0) || setgroups(0, NULL) || setresuid(0, 0, 0)) plan_fail("cannot take the ids of the box", NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* the change of ids cleared it */
}

static void name_box(const struct plan *plan) {
    const char *name = plan->name ? plan->name : "sandbox";
    if (sethostname(name, strlen(name))) plan_fail("cannot name the box", NULL);
}

/* Last, once the process is where it belongs: its own control group is then the topmost that it sees. */
static void leave_cgroups(void) {
    guard_await_cgroups();
    if (unshare(CLONE_NEWCGROUP)) plan_fail("cannot make a namespace of control groups", NULL);
}

void box_enter(const struct plan *plan) {
    become_root_of_ids(plan);
    /* Only a child is in a new process namespace. It is made first: what takes long is done while the guard works. */
    if (unshare(CLONE_NEWPID)) plan_fail("cannot make a process namespace", NULL);
    pid_t first = fork();
    if (first < 0) plan_fail("cannot start the first process of the box", NULL);
    if (first) {
        guard_name_first(first);
        wait_for(first);
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setsid();
    int spaces = CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS;
    if (unshare(spaces)) plan_fail("cannot make the namespaces of the box", NULL);
    name_box(plan);
    raise_loopback();
    make_root(plan);
    leave_cgroups();
    give_up_rights(plan);
}
