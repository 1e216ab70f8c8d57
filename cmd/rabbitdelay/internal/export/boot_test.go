package export

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// A node boots with the virtual host and accepts its user's password, of which only a hash is written.
func TestBootDefinitions(t *testing.T) {
	text, err := BootDefinitions(topology.Topology{}, "shop", User{"admin", "hunter2"})
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(text, []byte("hunter2")) {
		t.Errorf("the password is in %s", text)
	}
	var d definitions
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	if len(d.Vhosts) != 1 || d.Vhosts[0].Name != "shop" {
		t.Errorf(`got the virtual hosts %v, want only "shop"`, d.Vhosts)
	}
	if len(d.Users) != 1 || len(d.Permissions) != 1 {
		t.Fatalf("users %v, permissions %v, want one of each", d.Users, d.Permissions)
	}
	hash, err := base64.StdEncoding.DecodeString(d.Users[0].PasswordHash)
	if err != nil || len(hash) != 4+32 {
		t.Fatalf("%d bytes (%v), want no error and %d", len(hash), err, 4+32)
	}
	if got := hashed256(hash[:4], "hunter2"); got != d.Users[0].PasswordHash {
		t.Errorf("the hash is %s, want %s", d.Users[0].PasswordHash, got)
	}
	if p := d.Permissions[0]; p != (permissionDefinition{"admin", "shop", ".*", ".*", ".*"}) {
		t.Errorf("permissions %v, want all for admin in shop", p)
	}
}
