#define _GNU_SOURCE
#include "common/plugin_file.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct elf_file {
    int descriptor;
    uint64_t size;
    ElfW(Ehdr) header;
} elf_file;

static const char truncated[] = "truncated: its headers name bytes beyond its end";

static int fits(uint64_t from, uint64_t bytes, uint64_t size) {
    return from <= size && bytes <= size - from;
}

static int read_at(const elf_file *file, void *target, size_t bytes, uint64_t from) {
    return fits(from, bytes, file->size) &&
           pread(file->descriptor, target, bytes, (off_t)from) == (ssize_t)bytes;
}

static int read_segment(const elf_file *file, int index, ElfW(Phdr) * segment) {
    return read_at(file, segment, sizeof *segment,
                   file->header.e_phoff + (uint64_t)index * sizeof *segment);
}

static int read_section(const elf_file *file, int index, ElfW(Shdr) * section) {
    return read_at(file, section, sizeof *section,
                   file->header.e_shoff + (uint64_t)index * sizeof *section);
}

#if defined(__x86_64__)
#define THIS_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define THIS_MACHINE EM_AARCH64
#elif defined(__powerpc64__)
#define THIS_MACHINE EM_PPC64
#elif defined(__riscv)
#define THIS_MACHINE EM_RISCV
#endif

static const char *wrong_header(const elf_file *file) {
    const ElfW(Ehdr) *header = &file->header;
    const uint16_t one = 1;
    const int data = *(const unsigned char *)&one ? ELFDATA2LSB : ELFDATA2MSB;
    if (memcmp(header->e_ident, ELFMAG, SELFMAG) != 0)
        return "no ELF file";
    if (header->e_ident[EI_CLASS] != (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32) ||
        header->e_ident[EI_DATA] != data)
        return "an ELF file of another word size or byte order";
#ifdef THIS_MACHINE
    if (header->e_machine != THIS_MACHINE)
        return "an ELF file for another processor";
#endif
    if (header->e_type != ET_DYN || header->e_phentsize != sizeof(ElfW(Phdr)) ||
        (header->e_shnum && header->e_shentsize != sizeof(ElfW(Shdr))))
        return "an ELF file, but no shared object";
    if (!fits(header->e_phoff, (uint64_t)header->e_phnum * sizeof(ElfW(Phdr)), file->size) ||
        !fits(header->e_shoff, (uint64_t)header->e_shnum * sizeof(ElfW(Shdr)), file->size))
        return truncated;
    return NULL;
}

/* Whether the linker's directory lies in what a segment loads from the file. */
static int is_loaded(const elf_file *file, const ElfW(Phdr) * dynamic) {
    ElfW(Phdr) load;
    for (int i = 0; i < file->header.e_phnum && read_segment(file, i, &load); i++)
        if (load.p_type == PT_LOAD && dynamic->p_offset >= load.p_offset &&
            fits(dynamic->p_offset - load.p_offset, dynamic->p_filesz, load.p_filesz) &&
            dynamic->p_vaddr - load.p_vaddr == dynamic->p_offset - load.p_offset)
            return dynamic->p_filesz > 0;
    return 0;
}

/* Loaded segments ascend without overlap, as the linker maps the span from first to last. */
static int can_be_mapped(const ElfW(Phdr) * load, uint64_t *end) {
    const uint64_t align = load->p_align > 1 ? load->p_align : 1;
    const int fine = load->p_filesz <= load->p_memsz && load->p_vaddr >= *end &&
                     fits(load->p_vaddr, load->p_memsz, (uint64_t)PTRDIFF_MAX) &&
                     (align & (align - 1)) == 0 &&
                     ((load->p_vaddr - load->p_offset) & (align - 1)) == 0;
    *end = load->p_vaddr + load->p_memsz;
    return fine;
}

static const char *wrong_segments(const elf_file *file) {
    ElfW(Phdr) segment;
    uint64_t end = 0;
    int dynamic = 0;
    for (int i = 0; i < file->header.e_phnum; i++) {
        if (!read_segment(file, i, &segment) ||
            (segment.p_type == PT_LOAD && !fits(segment.p_offset, segment.p_filesz, file->size)))
            return truncated;
        if ((segment.p_type == PT_LOAD && !can_be_mapped(&segment, &end)) ||
            (segment.p_type == PT_DYNAMIC && !is_loaded(file, &segment)))
            return "damaged: its segments contradict each other";
        dynamic += segment.p_type == PT_DYNAMIC;
    }
    return dynamic == 1 ? NULL : "an ELF file, but no shared object";
}

/* Linkers write this table last: where it is blank, the file was not written to its end. */
static const char *wrong_sections(const elf_file *file) {
    ElfW(Shdr) section;
    for (int i = 0; i < file->header.e_shnum; i++) {
        if (!read_section(file, i, &section) ||
            (section.sh_type != SHT_NOBITS && section.sh_type != SHT_NULL &&
             !fits(section.sh_offset, section.sh_size, file->size)))
            return truncated;
        if (i == file->header.e_shstrndx && i > 0 && section.sh_type != SHT_STRTAB)
            return "damaged: its section headers are blank";
    }
    return NULL;
}

static const char *inspect(int descriptor) {
    elf_file file = {.descriptor = descriptor};
    struct stat status;
    if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode))
        return "no regular file";
    file.size = (uint64_t)status.st_size;
    if (!read_at(&file, &file.header, sizeof file.header, 0))
        return "too short for an ELF file";
    const char *wrong = wrong_header(&file);
    if (!wrong)
        wrong = wrong_segments(&file);
    return wrong ? wrong : wrong_sections(&file);
}

/* What is not a regular file is not even opened: a FIFO would wait, a device might act. */
const char *rope_plugin_file_wrong(const char *path) {
    struct stat status;
    if (stat(path, &status) != 0)
        return strerror(errno);
    if (!S_ISREG(status.st_mode))
        return "no regular file";
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (descriptor < 0)
        return strerror(errno);
    const char *wrong = inspect(descriptor);
    close(descriptor);
    return wrong;
}
