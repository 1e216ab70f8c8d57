package export

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// The boot definitions contain the virtual host and its user with all permissions. They contain only a hash of the
// password.
func TestBootDefinitions(t *testing.T) {
	text, err := BootDefinitions(topology.Topology{}, "shop", User{"admin", "hunter2"})
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(text, []byte("hunter2")) {
		t.Errorf("got the definitions %s, want them without the password", text)
	}
	var d definitions
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	if len(d.Vhosts) != 1 || d.Vhosts[0].Name != "shop" {
		t.Errorf(`got the virtual hosts %v, want only "shop"`, d.Vhosts)
	}
	if len(d.Users) != 1 || len(d.Permissions) != 1 {
		t.Fatalf("got the users %v and the permissions %v, want one of each", d.Users, d.Permissions)
	}
	hash, err := base64.StdEncoding.DecodeString(d.Users[0].PasswordHash)
	if err != nil || len(hash) != 4+32 {
		t.Fatalf("the password hash has %d bytes (error %v), want %d", len(hash), err, 4+32)
	}
	if got := hashed256(hash[:4], "hunter2"); got != d.Users[0].PasswordHash {
		t.Errorf("the hash is %s, want %s", d.Users[0].PasswordHash, got)
	}
	if p := d.Permissions[0]; p != (permissionDefinition{"admin", "shop", ".*", ".*", ".*"}) {
		t.Errorf("got the permissions %v, want all for admin in shop", p)
	}
}
