/* Stands in for computenetwork.dll and vmcompute.dll under Wine: it passes each call on to a simulated
 * HNS, which listens on 127.0.0.1 at the port that the environment variable VIPKIT_HNS names.
 * internal/testing/simhns is that HNS, and its serve.go has the other end of this.
 * Where nothing listens, calls fail as they do while HNS does not run. */
#include <winsock2.h>
#include <windows.h>
#include <objbase.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNAVAILABLE ((HRESULT)0x800706ba) /* RPC_S_SERVER_UNAVAILABLE */
#define SERVICE_DISCONNECT 0x01000000

struct request {
	char function[48];
	uint64_t handle;
	uint8_t id[16];
	uint64_t text; /* length in bytes */
};

struct reply {
	uint64_t handle;
	uint32_t code, text, record, unused; /* lengths in bytes */
};

static BOOL send_all(SOCKET s, const void *from, size_t length)
{
	for (const char *at = from; length; ) {
		int n = send(s, at, (int)length, 0);
		if (n <= 0)
			return FALSE;
		at += n;
		length -= n;
	}
	return TRUE;
}

static BOOL receive_all(SOCKET s, void *to, size_t length)
{
	for (char *at = to; length; ) {
		int n = recv(s, at, (int)length, 0);
		if (n <= 0)
			return FALSE;
		at += n;
		length -= n;
	}
	return TRUE;
}

static SOCKET connect_service(void)
{
	char port[8];
	WSADATA data;
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	DWORD length = GetEnvironmentVariableA("VIPKIT_HNS", port, sizeof port);
	SOCKET s;

	if (length == 0 || length >= sizeof port || WSAStartup(MAKEWORD(2, 2), &data))
		return INVALID_SOCKET;
	to.sin_port = htons((u_short)atoi(port));
	s = socket(AF_INET, SOCK_STREAM, IPPROTO_TCP);
	if (s != INVALID_SOCKET && connect(s, (struct sockaddr *)&to, sizeof to)) {
		closesocket(s);
		return INVALID_SOCKET;
	}
	return s;
}

/* receive_text returns a text in memory that the caller frees with CoTaskMemFree. */
static BOOL receive_text(SOCKET s, uint32_t length, PWSTR *to)
{
	PWSTR text;
	BOOL ok;

	if (length == 0)
		return TRUE;
	text = CoTaskMemAlloc(length + sizeof *text);
	if (!text)
		return FALSE;
	ok = receive_all(s, text, length);
	text[length / sizeof *text] = 0;
	if (ok && to)
		*to = text;
	else
		CoTaskMemFree(text);
	return ok;
}

/* exchange sends a request and receives the reply. */
static BOOL exchange(SOCKET s, struct request *q, PCWSTR text, struct reply *r)
{
	q->text = text ? wcslen(text) * sizeof *text : 0;
	return send_all(s, q, sizeof *q) && send_all(s, text, q->text) && receive_all(s, r, sizeof *r);
}

static HRESULT call(struct request q, PCWSTR text, uint64_t *handle, PWSTR *result, PWSTR *record)
{
	SOCKET s = connect_service();
	struct reply r;
	BOOL ok;

	if (result)
		*result = NULL;
	if (record)
		*record = NULL;
	if (s == INVALID_SOCKET)
		return UNAVAILABLE;
	ok = exchange(s, &q, text, &r) && receive_text(s, r.text, result) && receive_text(s, r.record, record);
	closesocket(s);
	if (!ok)
		return UNAVAILABLE;
	if (handle)
		*handle = r.handle;
	return (HRESULT)r.code;
}

static struct request on_handle(const char *function, uint64_t handle)
{
	struct request q = { .handle = handle };
	snprintf(q.function, sizeof q.function, "%s", function);
	return q;
}

static struct request on_id(const char *function, const GUID *id, uint64_t handle)
{
	struct request q = on_handle(function, handle);
	memcpy(q.id, id, sizeof q.id);
	return q;
}

#define EXPORT __declspec(dllexport) HRESULT WINAPI

#define FUNCTIONS(KIND) \
	EXPORT HcnEnumerate##KIND##s(PCWSTR query, PWSTR *ids, PWSTR *record) \
	{ \
		return call(on_handle("HcnEnumerate" #KIND "s", 0), query, NULL, ids, record); \
	} \
	EXPORT HcnOpen##KIND(const GUID *id, uint64_t *handle, PWSTR *record) \
	{ \
		return call(on_id("HcnOpen" #KIND, id, 0), NULL, handle, NULL, record); \
	} \
	EXPORT HcnModify##KIND(uint64_t handle, PCWSTR settings, PWSTR *record) \
	{ \
		return call(on_handle("HcnModify" #KIND, handle), settings, NULL, NULL, record); \
	} \
	EXPORT HcnQuery##KIND##Properties(uint64_t handle, PCWSTR query, PWSTR *properties, PWSTR *record) \
	{ \
		return call(on_handle("HcnQuery" #KIND "Properties", handle), query, NULL, properties, record); \
	} \
	EXPORT HcnDelete##KIND(const GUID *id, PWSTR *record) \
	{ \
		return call(on_id("HcnDelete" #KIND, id, 0), NULL, NULL, NULL, record); \
	} \
	EXPORT HcnClose##KIND(uint64_t handle) \
	{ \
		return call(on_handle("HcnClose" #KIND, handle), NULL, NULL, NULL, NULL); \
	}

FUNCTIONS(Network)
FUNCTIONS(Endpoint)
FUNCTIONS(LoadBalancer)

EXPORT HcnCreateEndpoint(uint64_t network, const GUID *id, PCWSTR settings, uint64_t *handle, PWSTR *record)
{
	return call(on_id("HcnCreateEndpoint", id, network), settings, handle, NULL, record);
}

EXPORT HcnCreateLoadBalancer(const GUID *id, PCWSTR settings, uint64_t *handle, PWSTR *record)
{
	return call(on_id("HcnCreateLoadBalancer", id, 0), settings, handle, NULL, record);
}

EXPORT HNSCall(PCWSTR method, PCWSTR path, PCWSTR body, PWSTR *answer)
{
	struct request q = { 0 };

	snprintf(q.function, sizeof q.function, "HNSCall %ls %ls", method, path);
	return call(q, body, NULL, answer, NULL);
}

typedef void CALLBACK notification_callback(DWORD type, void *context, HRESULT status, PCWSTR data);

struct registration {
	SOCKET connection;
	notification_callback *callback;
	void *context;
	HANDLE thread;
	volatile LONG ended;
};

static DWORD WINAPI notify(void *argument)
{
	struct registration *r = argument;
	uint32_t code;

	while (receive_all(r->connection, &code, sizeof code))
		r->callback(code, r->context, S_OK, L"");
	if (!r->ended)
		r->callback(SERVICE_DISCONNECT, r->context, S_OK, L"");
	return 0;
}

EXPORT HcnRegisterServiceCallback(notification_callback *callback, void *context, struct registration **to)
{
	struct request q = on_handle("HcnRegisterServiceCallback", 0);
	struct reply answer;
	struct registration *r = calloc(1, sizeof *r);

	if (!r)
		return E_OUTOFMEMORY;
	r->callback = callback;
	r->context = context;
	r->connection = connect_service();
	if (r->connection == INVALID_SOCKET) {
		free(r);
		return UNAVAILABLE;
	}
	if (!exchange(r->connection, &q, NULL, &answer))
		answer.code = (uint32_t)UNAVAILABLE;
	if (!answer.code) {
		r->thread = CreateThread(NULL, 0, notify, r, 0, NULL);
		if (r->thread) {
			*to = r;
			return S_OK;
		}
		answer.code = (uint32_t)E_FAIL;
	}
	closesocket(r->connection);
	free(r);
	return (HRESULT)answer.code;
}

EXPORT HcnUnregisterServiceCallback(struct registration *r)
{
	InterlockedExchange(&r->ended, 1);
	shutdown(r->connection, SD_BOTH);
	closesocket(r->connection);
	WaitForSingleObject(r->thread, INFINITE);
	CloseHandle(r->thread);
	free(r);
	return S_OK;
}
