package suite

import (
	"net/http"
	"net/url"
	"testing"
)

// User creates a user with permissions in the virtual host and returns the URL for connecting as that user.
func (v *Vhost) User(t *testing.T, name, tags string, permissions [3]string) string {
	t.Helper()
	name = name + "-" + v.Name
	const password = "opensesame"
	v.Manage(t, http.MethodPut, "/api/users/"+name, map[string]any{"password": password, "tags": tags})
	t.Cleanup(func() { v.Manage(t, http.MethodDelete, "/api/users/"+name, nil) })
	v.Permit(t, name, permissions)
	u, err := url.Parse(v.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(name, password)
	return u.String()
}

// Permit grants permissions in this virtual host to the user with the given full name. The permissions are configure,
// write and read.
func (v *Vhost) Permit(t *testing.T, name string, permissions [3]string) {
	t.Helper()
	body := map[string]string{"configure": permissions[0], "write": permissions[1], "read": permissions[2]}
	v.Manage(t, http.MethodPut, v.Mgmt.InVhost("permissions", name), body)
}

// PermitTopics grants topic permissions to the user in a URL. For each exchange, these are write and read.
func (v *Vhost) PermitTopics(t *testing.T, userURL string, permissions map[string][2]string) {
	t.Helper()
	u, err := url.Parse(userURL)
	MustSucceed(t, err)
	for exchange, p := range permissions {
		body := map[string]string{"exchange": exchange, "write": p[0], "read": p[1]}
		v.Manage(t, http.MethodPut, v.Mgmt.InVhost("topic-permissions", u.User.Username()), body)
	}
}
