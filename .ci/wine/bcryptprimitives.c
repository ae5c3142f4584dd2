/* What programs of Go need of Windows and Wine 8 lacks:
 *
 * - ProcessPrng, which the runtime asks for random numbers;
 * - WSAIoctl that knows SIO_UDP_NETRESET, without which package net opens no UDP socket;
 * - NtSetInformationFile that says of FileDispositionInformationEx that it does not know it, and
 *   not that it is not implemented: package os then deletes files in another way.
 *
 * Each program loads this library before it looks up the two functions. So DllMain puts others into
 * the tables of exports of their libraries. */
#include <winsock2.h>
#include <windows.h>
#include <winternl.h>
#include <string.h>

#define SIO_UDP_NETRESET 0x9800000F
#define FILE_DISPOSITION_INFORMATION_EX_CLASS 64
#define STATUS_INVALID_INFO_CLASS ((NTSTATUS)0xC0000003)

BOOLEAN WINAPI SystemFunction036(PVOID to, ULONG length); /* RtlGenRandom */

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE to, SIZE_T length)
{
	while (length) {
		ULONG part = length < 65536 ? (ULONG)length : 65536;
		if (!SystemFunction036(to, part))
			return FALSE;
		to += part;
		length -= part;
	}
	return TRUE;
}

typedef int WINAPI ioctl_function(SOCKET, DWORD, LPVOID, DWORD, LPVOID, DWORD, LPDWORD, LPWSAOVERLAPPED,
				  LPWSAOVERLAPPED_COMPLETION_ROUTINE);
typedef NTSTATUS NTAPI set_function(HANDLE, PIO_STATUS_BLOCK, PVOID, ULONG, ULONG);

static ioctl_function *original_ioctl;
static set_function *original_set;

static int WINAPI ioctl(SOCKET s, DWORD code, LPVOID in, DWORD in_length, LPVOID out, DWORD out_length, LPDWORD written,
			LPWSAOVERLAPPED overlapped, LPWSAOVERLAPPED_COMPLETION_ROUTINE routine)
{
	if (code != SIO_UDP_NETRESET)
		return original_ioctl(s, code, in, in_length, out, out_length, written, overlapped, routine);
	if (written)
		*written = 0;
	return 0;
}

static NTSTATUS NTAPI set(HANDLE file, PIO_STATUS_BLOCK status, PVOID value, ULONG length, ULONG class)
{
	if (class == FILE_DISPOSITION_INFORMATION_EX_CLASS)
		return STATUS_INVALID_INFO_CLASS;
	return original_set(file, status, value, length, class);
}

/* replace_export returns the original function; NULL on failure. An export is an offset of 32 bits
 * from the start of its library, so it cannot name a function of another one. It names a jump, which
 * fits between the headers and the first section. */
static void *replace_export(const char *library_name, const char *name, void *with)
{
	BYTE *library = (BYTE *)LoadLibraryA(library_name);
	const IMAGE_NT_HEADERS *headers = (void *)(library + ((IMAGE_DOS_HEADER *)library)->e_lfanew);
	const IMAGE_EXPORT_DIRECTORY *exports = (void *)(library + headers->OptionalHeader.DataDirectory[0].VirtualAddress);
	const DWORD *names = (void *)(library + exports->AddressOfNames);
	const WORD *ordinals = (void *)(library + exports->AddressOfNameOrdinals);
	DWORD *functions = (void *)(library + exports->AddressOfFunctions);
	BYTE jump[] = { 0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0 }; /* mov rax, with; jmp rax */
	BYTE *at = library + 4096 - sizeof jump;
	DWORD i, protection;
	void *original;

	if ((BYTE *)(IMAGE_FIRST_SECTION(headers) + headers->FileHeader.NumberOfSections) > at)
		return NULL;
	for (i = 0; i < exports->NumberOfNames && strcmp((char *)library + names[i], name); i++)
		;
	if (i == exports->NumberOfNames)
		return NULL;
	memcpy(jump + 2, &with, sizeof with);
	if (!VirtualProtect(at, sizeof jump, PAGE_EXECUTE_READWRITE, &protection))
		return NULL;
	memcpy(at, jump, sizeof jump);
	functions += ordinals[i];
	if (!VirtualProtect(functions, sizeof *functions, PAGE_READWRITE, &protection))
		return NULL;
	original = library + *functions;
	*functions = (DWORD)(at - library);
	return VirtualProtect(functions, sizeof *functions, protection, &protection) ? original : NULL;
}

BOOL WINAPI DllMain(HINSTANCE library, DWORD reason, LPVOID unused)
{
	(void)library, (void)unused;
	if (reason != DLL_PROCESS_ATTACH)
		return TRUE;
	original_ioctl = replace_export("ws2_32.dll", "WSAIoctl", ioctl);
	original_set = replace_export("ntdll.dll", "NtSetInformationFile", set);
	return original_ioctl && original_set;
}
